"""Patch tokens of some images, in the order of their rows, with the label of each; never more in memory than a block."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int16
from torch import Tensor

from probe.closed.protocol import Scaling
from probe.head import FinalNorm
from probe.sources import Source
from store import Loader, StoreError
from store.loading.placement import Placement
from store.truths import VOID

IMAGES_AT_ONCE = 16
BLOCK = 8192


def patch_vectors(features: Mapping[str, Tensor]) -> Float[Tensor, "B T _W"]:
    """Patch tokens [B, T, D]; [B, T, 2 D] with the image's [cls] token behind each of them, where the features have `cls`."""
    patch, cls = features["patch"], features.get("cls")
    return patch if cls is None else torch.cat([patch, cls[:, None].expand_as(patch)], -1)


@dataclass(frozen=True, eq=False)
class Patches:
    """The patches of N images.

    Attributes:
        source: their feature set, and the block that is read.
        rows: of the images in it.
        labels: of the patches in all views, view by view, -1 where void; of all images of the set.
        n_classes: K.
        views: of the images, whose patches are read.
        final_norm: applied to the tokens, if given.
        placement: where tokens are between two passes over them: "memory", "stream", or "auto".
        device: where they are wanted.
        buffer_nbytes: memory for streaming, if not as `Loader` has it.
        with_cls: whether [cls] is behind each patch (`patch_vectors`).
    """

    source: Source
    rows: Int[np.ndarray, "N"]
    labels: Int16[np.ndarray, "_all T"]
    n_classes: int
    views: tuple[int, ...] = (0,)
    final_norm: FinalNorm | None = None
    placement: Placement = "stream"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    buffer_nbytes: int | None = None
    with_cls: bool = False

    def __post_init__(self) -> None:
        if not len(self.rows):
            raise StoreError(f"{self.source.store.where} has no image that could be read")

    def __len__(self) -> int:
        """Number of images, N."""
        return len(self.rows)

    def part(self, rows: np.ndarray) -> "Patches":
        """The patches of some of the images."""
        return replace(self, rows=np.asarray(rows))

    def placed(self, placement: Placement) -> "Patches":
        """The same patches, read otherwise."""
        return replace(self, placement=placement)

    @property
    def dim(self) -> int:
        """Width of what is learnt from: D of the tokens, or twice that with [cls]."""
        return self.source.dim * (1 + self.with_cls)

    @property
    def n_patches(self) -> int:
        """T, patches of an image in all views."""
        return self.labels.shape[1]

    @cached_property
    def counts(self) -> Int[np.ndarray, "K"]:
        """How many patches have each label."""
        labels = self.labels[self.rows]
        return np.bincount(labels[labels != VOID].astype(np.int64), minlength=self.n_classes)

    @property
    def n_labelled(self) -> int:
        """Patches that have a label."""
        return int(self.counts.sum())

    @cached_property
    def loader(self) -> Loader:
        """Batches of whole images in all views, in the order of their rows."""
        arrays: dict[str, Any] = {f"view{view}": self.source.arrays("patch", (view,))[0] for view in self.views}
        cls = {"cls": self.source.arrays("cls", self.views)} if self.with_cls else {}
        return self._batches(arrays | cls, max(1, IMAGES_AT_ONCE // len(self.views)), shuffle=False)

    def batches(self, views: Sequence[int], size: int) -> Loader:
        """Batches of whole images, each in one of these views at random."""
        kinds = ("patch", "cls") if self.with_cls else ("patch",)
        return self._batches({kind: self.source.arrays(kind, views) for kind in kinds}, size)

    def _batches(self, arrays: Mapping[str, Any], size: int, **options: Any) -> Loader:
        placed: dict[str, Any] = {"device": self.device, "placement": self.placement, "buffer_nbytes": self.buffer_nbytes}
        return Loader(arrays, self.labels, self.rows, size, **placed, **options)

    def images(self) -> Iterator[tuple[Int[np.ndarray, "B"], Float[Tensor, "B T D"]]]:
        """Rows and tokens (float32) of a few images at a time."""
        for batch in self.loader.epoch():
            views = [batch[f"view{view}"] for view in self.views]
            tokens = {"patch": torch.cat(views, 1) if len(views) > 1 else views[0]}
            tokens |= {"cls": batch["cls"]} if self.with_cls else {}
            yield batch["row"].cpu().numpy(), patch_vectors(tokens if self.final_norm is None else self.final_norm(tokens))

    def blocks(self, size: int, labelled: bool = True) -> Iterator[tuple[Float[Tensor, "n D"], Int[Tensor, "n"]]]:
        """Tokens and labels of `size` patches at a time, the last ones fewer.

        Blocks are the same wherever tokens are kept, and so is all that is computed from them. A block's memory is used
        again for the next.

        Args:
            labelled: leave out void patches.
        """
        block = torch.empty(size, self.dim, device=self.device)
        label_block = torch.empty(size, dtype=torch.int64, device=self.device)
        filled = 0
        for rows, tokens in self.images():
            labels = torch.from_numpy(self.labels[rows].astype(np.int64)).to(self.device).flatten()
            flat = tokens.flatten(0, 1)
            if labelled and bool((labels == VOID).any()):
                flat, labels = flat[labels != VOID], labels[labels != VOID]
            taken = 0
            while taken < len(flat):
                n = min(size - filled, len(flat) - taken)
                block[filled : filled + n] = flat[taken : taken + n]
                label_block[filled : filled + n] = labels[taken : taken + n]
                filled, taken = filled + n, taken + n
                if filled == size:
                    yield block, label_block
                    filled = 0
        if filled:
            yield block[:filled], label_block[:filled]


def channel_scale(patches: Patches, standardise: bool) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
    """Of each channel its mean over all labelled patches, and 1 / standard deviation, or 1 without `standardise`; float32."""
    n, shift = 0, torch.zeros(patches.dim, dtype=torch.float64, device=patches.device)
    sums = torch.zeros(2, patches.dim, dtype=torch.float64, device=patches.device)
    for tokens, _ in patches.blocks(BLOCK):
        shift = tokens.double().mean(0) if not n else shift  # so that little cancels in the variance
        centred = tokens.double() - shift
        n, sums = n + len(tokens), sums + torch.stack([centred.sum(0), centred.square().sum(0)])
    mean, square = sums / n
    exact = Scaling.of(mean + shift, (square - mean.square()).clamp(min=0).sqrt(), standardise)
    return exact.mean.float(), (1 / exact.std).float()
