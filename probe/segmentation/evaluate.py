"""Predicted label maps compared with true ones, at several resolutions, by confusion matrices in whole numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int16, Integer
from torch import Tensor

from probe.segmentation.label_maps import LabelMapsOfView, Resolution, Upsampling, label_map_of, shown_by, shown_of, shows_more
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.patches import Patches
from probe.subsets import groups_of
from store import BeyondClsError
from store.truths import VOID

Confusions = dict[Resolution, "Confusion"]  # of a model, "grid" first
GRID = "grid"  # patch labels against patch labels
MEASURES = ("miou", "accuracy")


@dataclass(eq=False)
class Confusion:
    """Counts of (true class, predicted class).

    Attributes:
        n_classes: K.
        by_group: counts of each group of images, [K, K]; rows are true classes.
    """

    n_classes: int
    by_group: dict[int, Int[np.ndarray, "K K"]] = field(default_factory=dict)

    @property
    def counts(self) -> Int[np.ndarray, "K K"]:
        """Of all images, rows are true classes."""
        return sum(self.by_group.values(), start=np.zeros((self.n_classes, self.n_classes), np.int64))

    def without_each(self) -> Iterator["Confusion"]:
        """Without each group of images in turn; nothing if there are not several."""
        counts = self.counts
        for group in sorted(self.by_group) if len(self.by_group) > 1 else ():
            yield Confusion(self.n_classes, {0: counts - self.by_group[group]})

    def add(self, truth: Integer[np.ndarray, "*shape"], predicted: Integer[np.ndarray, "*shape"], group: int = 0) -> None:
        """Count what is labelled; where `truth` is -1 (void) any prediction is right, and nothing is counted.

        Args:
            group: of the image (`probe.subsets`).

        Raises:
            BeyondClsError: a label outside of -1…K - 1, or a prediction outside of 0…K - 1 for what is labelled.
        """
        labelled = truth != VOID
        true, guess = truth[labelled].astype(np.int64), predicted[labelled].astype(np.int64)
        for name, values in (("labels", true), ("predictions", guess)):
            if values.size and not 0 <= values.min() <= values.max() < self.n_classes:
                raise BeyondClsError(
                    f"{name} are {values.min()} to {values.max()}, expected 0 to {self.n_classes - 1} (void is {VOID}); "
                    "use splits of one data set"
                )
        pairs = np.bincount(true * self.n_classes + guess, minlength=self.n_classes**2).reshape(self.n_classes, -1)
        self.by_group[group] = self.by_group.get(group, 0) + pairs

    @property
    def n(self) -> int:
        """Number of labelled pixels or patches."""
        return int(self.counts.sum())

    @property
    def iou(self) -> Float[np.ndarray, "K"]:
        """Intersection over union of each class, percent; NaN for a class that neither truth nor predictions have."""
        counts = self.counts
        right = np.diag(counts).astype(np.float64)
        union = counts.sum(0) + counts.sum(1) - right
        return np.divide(100 * right, union, out=np.full(self.n_classes, np.nan), where=union > 0)

    @property
    def miou(self) -> float:
        """Mean of `iou` over the classes that truth or predictions have, percent; NaN if nothing is labelled.

        As `sklearn.metrics.jaccard_score(average="macro")`.
        """
        iou = self.iou
        return float(np.nanmean(iou)) if self.n else float("nan")

    @property
    def accuracy(self) -> float:
        """Share of what is labelled that is predicted rightly, percent; NaN if nothing is labelled."""
        return 100 * float(np.trace(self.counts)) / self.n if self.n else float("nan")


@dataclass(frozen=True, eq=False)
class ModelPredictions:
    """Predictions of one model for the patches of all test images.

    Attributes:
        labels: one a patch, in the order of the images; pixels have the label of the patch that covers them.
        head: in place of labels; pixels have the label of the highest of the logits that are interpolated between patches.
        interpolated: whether they are; else also a head's pixels have the label of the patch that covers them.
    """

    labels: Int16[np.ndarray, "N T"] | None = None
    head: PatchHead | None = None
    interpolated: bool = True


def evaluate(
    test: Patches,
    models: Mapping[Any, ModelPredictions],
    resolutions: Sequence[Resolution] = (),
    maps: LabelMapsOfView | None = None,
    keep: Callable[[Any, int, Int16[np.ndarray, "h w"]], None] | None = None,
    progress: Callable[[int], None] = lambda n: None,
) -> tuple[dict[Any, Confusions], dict[str, Any] | None]:
    """Compare the predictions of models with the truth, on the grid and at other resolutions.

    Of several views of an image, which are windows, logits are averaged where they overlap, and so are one-hot labels.

    Args:
        resolutions: "original", or sides of frames in pixels; in addition to the grid.
        maps: of the test images; not needed for the grid alone.
        keep: called with the name of a model, a row and the predicted label map at the first of `resolutions`, -1 where the
            view shows nothing of the image.
        progress: called with the number of images since the last call.

    Returns:
        Confusions of each model, and what the views show of the images' labelled pixels, if pixels were compared.
    """
    measured: dict[Any, Confusions] = {name: {r: Confusion(test.n_classes) for r in (GRID, *resolutions)} for name in models}
    grid, position, labelled, groups = test.source.store.grid, 0, [0, 0], groups_of(len(test)).tolist()
    n_views, of_view = len(test.views), [LabelMapsOfView(maps.store, view) for view in test.views] if maps is not None else []
    more = shows_more(test.source.store, test.views) if n_views > 1 else np.ones((len(test.labels), 1), bool)
    heads = {name: model.head for name, model in models.items() if model.head is not None}
    batches: Any = test.images() if heads else ((test.rows[i : i + 1], None) for i in range(len(test)))
    for rows, tokens in batches:
        logits = {name: _logits(head, tokens, n_views) for name, head in heads.items()}
        for i, row in enumerate(rows.tolist()):
            views = np.flatnonzero(more[row])
            truths, upsamplings = (
                _truths([of_view[view] for view in views], row, resolutions, labelled) if of_view else ({}, {})
            )
            for name, model in models.items():
                on_grids = logits[name][i] if model.labels is None else model.labels[position].reshape(n_views, *grid)
                labels = on_grids.argmax(1).numpy() if isinstance(on_grids, Tensor) else on_grids
                measured[name][GRID].add(test.labels[row].reshape(n_views, *grid), labels, groups[position])
                for number, (resolution, truth) in enumerate(truths.items()):
                    predicted = label_map_of(on_grids[views], upsamplings[resolution], truth.shape, model.interpolated)
                    seen = np.where(predicted == VOID, VOID, truth)
                    measured[name][resolution].add(seen, predicted, groups[position])
                    if keep is not None and number == 0:
                        keep(name, row, predicted)
            position += 1
        progress(len(rows))
    shown = shown_of(maps, test.rows, *labelled) if maps is not None else None
    return measured, shown


def _logits(head: PatchHead, tokens: Float[Tensor, "B VT D"], n_views: int) -> Float[Tensor, "B V K rows columns"]:
    return head.of_tokens(tokens.unflatten(1, (n_views, -1)).flatten(0, 1)).unflatten(0, (-1, n_views)).cpu()


def _truths(
    views: Sequence[LabelMapsOfView], row: int, resolutions: Sequence[Resolution], labelled: list[int]
) -> tuple[dict[Resolution, np.ndarray], dict[Resolution, list[Upsampling]]]:
    """True label maps of an image, and the way to them from each of its views; and count its labelled pixels, and those that
    views show.
    """
    shown = {r: [view.upsampling(row, r) for view in views] for r in (*resolutions, "original")}
    original = views[0].original(row)
    labelled[0] += int((original != VOID).sum())
    labelled[1] += int((original[shown_by(shown["original"], original.shape)] != VOID).sum())
    return {r: original if r == "original" else views[0].at(row, r) for r in resolutions}, shown
