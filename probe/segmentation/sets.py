"""The feature sets of a run: training, test and perhaps validation images, checked to belong together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from probe.head import FinalNorm
from probe.segmentation.label_maps import LabelMapsOfView, shows_more
from probe.segmentation.patches import Patches
from probe.sources import Source, check_encoder
from probe.subsets import hold_out
from store import FeatureStore, StoreError
from store.loading.placement import Placement
from store.truths import VOID


@dataclass(frozen=True, eq=False)
class Sets:
    """Where patches are learnt from and measured.

    Attributes:
        validation: images to select on; without them a share of the training images is held out.
        block: whose tokens are read, of all sets; by default the deepest one of the training set.
        views: of the training images that the linear head trains on; all else reads view 0, or all windows.
        share, seed: of the hold-out.
        workers: processes that decode label maps in training, in addition to this one.

    Raises:
        StoreError: a set has no label maps or no patch tokens of the block, is of another encoder, or has other classes.
    """

    training: FeatureStore
    test: FeatureStore
    validation: FeatureStore | None = None
    block: int | None = None
    views: Sequence[int] = (0,)
    final_norm: bool = False
    share: float = 0.1
    seed: int = 0
    placement: Placement = "auto"
    workers: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if self.block is None:  # the deepest one of another set may be another
            object.__setattr__(self, "block", self.training.spec.deepest)
        classes = self.training.segmentation.classes
        for store in filter(None, (self.test, self.validation)):
            check_encoder(self.training, store)

            theirs = store.segmentation.classes
            if theirs != classes:
                pairs = [(a, b) for a, b in zip(classes, theirs, strict=False) if a != b]
                which = f"class {pairs[0][0]!r} is {pairs[0][1]!r} there" if pairs else f"{len(classes)} and {len(theirs)}"
                raise StoreError(
                    f"{self.training.where} and {store.where} have different classes of label maps: {which}; use splits of "
                    "one data set, or give both extractions the same list of classes"
                )
        for store in filter(None, (self.training, self.test, self.validation)):
            store.tokens("patch", self.block)  # before anything is computed

    @property
    def classes(self) -> tuple[str, ...]:
        """Names in order of labels."""
        return self.training.segmentation.classes

    @cached_property
    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the training images to learn from while settings are compared, and of those that are held out."""
        rows = np.flatnonzero(self.training.valid)
        one_each = np.zeros((len(self.training), 1), np.int64)  # images have no class to stratify by
        return hold_out(one_each, self.share, self.seed, rows)

    @cached_property
    def learnt(self) -> Patches:
        """Patches to learn from at last: of all training images.

        Raises:
            StoreError: none of them has a label.
        """
        return _check_labelled(self._patches(self.training), "to learn from; give images with label maps that are not void")

    @cached_property
    def tested(self) -> Patches:
        """Patches of all test images."""
        return self._patches(self.test)

    @cached_property
    def compared(self) -> tuple[Patches, Patches]:
        """Patches to learn from and patches to judge by while settings are compared.

        Raises:
            StoreError: either have no labels.
        """
        if self.validation is not None:
            return self.learnt, _check_labelled(self._patches(self.validation), "to select on; give another --val")
        learn, judge = (self.learnt.part(rows) for rows in self.split)
        remedy = "to select on; give a larger share, --held-out, or other images, --val"
        return _check_labelled(learn, f"to learn from beside those {remedy}"), _check_labelled(judge, remedy)

    @cached_property
    def training_maps(self) -> list[LabelMapsOfView]:
        """Label maps of the views that the linear head trains on."""
        return [LabelMapsOfView(self.training, view) for view in self.views]

    def _patches(self, store: FeatureStore) -> Patches:
        norm = FinalNorm.from_store(self.training).to(self.device) if self.final_norm else None
        views, maps = tuple(range(store.spec.n_views if store.spec.has_windows else 1)), store.segmentation
        labels = np.stack([maps.patch_labels(view) for view in views], 1)  # [N, views, T]
        return Patches(
            Source(store, block=self.block),
            np.flatnonzero(store.valid),
            np.where(shows_more(store, views)[..., None], labels, np.int16(VOID)).reshape(len(labels), -1),
            len(self.classes),
            views,
            final_norm=norm,
            device=self.device,
        )


def _check_labelled(patches: Patches, purpose: str) -> Patches:
    """The same patches, of which some have a label.

    Raises:
        StoreError: none has.
    """
    if not patches.n_labelled:
        where, n = patches.source.store.where, len(patches)
        raise StoreError(f"{where}: no patch of the {n:,} image{'s' * (n > 1)} has a label {purpose}")
    return patches
