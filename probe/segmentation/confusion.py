"""One confusion matrix of labelled pixels or patches, in whole numbers, and the measures that follow from it."""

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
        counts: [K, K], rows are true classes.
    """

    n_classes: int
    counts: Int[np.ndarray, "K K"] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros((self.n_classes, self.n_classes), np.int64)

    def add(self, truth: Integer[np.ndarray, "*shape"], predicted: Integer[np.ndarray, "*shape"]) -> None:
        """Count what is labelled; where `truth` is -1 (void) any prediction is right, and nothing is counted.

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
        pairs = np.bincount(true * self.n_classes + guess, minlength=self.n_classes**2)
        self.counts += pairs.reshape(self.counts.shape)

    @property
    def n(self) -> int:
        """Number of labelled pixels or patches."""
        return int(self.counts.sum())

    @property
    def iou(self) -> Float[np.ndarray, "K"]:
        """Intersection over union of each class, percent; NaN for a class that neither truth nor predictions have."""
        right = np.diag(self.counts).astype(np.float64)
        union = self.counts.sum(0) + self.counts.sum(1) - right
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
