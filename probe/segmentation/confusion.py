"""One confusion matrix of labelled pixels or patches, in whole numbers, and the measures that follow from it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int, Integer

from store import BeyondClsError

VOID = -1


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
            group: of the image (`probe.left_out`).

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
        if group in self.by_group:
            self.by_group[group] += pairs
        else:
            self.by_group[group] = pairs

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
