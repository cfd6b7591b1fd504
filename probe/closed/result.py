"""The result of a protocol, and how it was selected and measured."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from jaxtyping import Float
from torch import Tensor

from probe.closed.vectors import Vectors
from probe.metrics import MULTILABEL, PER_IMAGE, n_without_positive

Candidate = TypeVar("Candidate")  # a value, or a tuple of values of several hyperparameters


@dataclass(frozen=True)
class Selection(Generic[Candidate]):
    """Which hyperparameters were compared, and on what. Never on test images.

    Attributes:
        on: "hold-out" or "leave-one-out", of the training images; "nothing" where the grid has one value.
        by: the measure: "top1", or "map" with several labels an image. Average precision is blind to the threshold: where it
            selects a heavy penalty, precision and recall at the threshold may be poor.
        n_images: number of images that it was measured on.
        candidates, percent: the values (tuples for several hyperparameters), of which the first of equally good ones is taken,
            and the measure of each.
    """

    on: str
    by: str | None = None
    n_images: int = 0
    candidates: tuple[Candidate, ...] = ()
    percent: tuple[float, ...] = ()

    @property
    def best(self) -> Candidate:
        """The first of the best candidates; a measure that is NaN is worse than any."""
        if len(self.candidates) == 1:
            return self.candidates[0]
        return self.candidates[max(range(len(self.percent)), key=lambda i: (self.percent[i] >= 0, self.percent[i]))]


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a protocol.

    Attributes:
        scores: of the test images, float32, higher is more likely; with several labels an image, 0 is the threshold.
        chosen: the hyperparameter, e.g. {"c": 0.1}.
        selection: how it was chosen.
        metrics: of the test images in percent, from `scores`: PER_IMAGE, or MULTILABEL with several labels an image.
        notes: what a reader of the numbers should know, e.g. that an optimiser did not converge.
    """

    scores: Float[Tensor, "N K"]
    chosen: dict[str, float]
    selection: Selection[Any]
    metrics: dict[str, float]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All but the scores, for JSON."""
        return {
            "chosen": self.chosen,
            "selection": asdict(self.selection),
            "metrics": self.metrics,
            "notes": list(self.notes),
        }


def measured(scores: Float[Tensor, "N K"], vectors: Vectors, names: Sequence[str] | None = None) -> dict[str, float]:
    """Measures in percent; by default all for the kind of labels. MULTILABEL averages over the classes that some image has."""
    scores, labels = scores.cpu(), vectors.labels.cpu()
    if vectors.multilabel:
        return {name: float(MULTILABEL[name](scores, labels)) for name in names or MULTILABEL}
    return {name: 100 * float(PER_IMAGE[name](scores, labels).double().mean()) for name in names or PER_IMAGE}


def criterion(vectors: Vectors) -> str:
    """The measure that hyperparameters are selected by."""
    return "map" if vectors.multilabel else "top1"


def notes_on(training: Vectors, test: Vectors) -> tuple[str, ...]:
    """Notes on classes that cannot be learnt, and on those that no mean includes."""
    notes = []
    labels = training.labels
    unseen = n_without_positive(labels) if training.multilabel else training.n_classes - len(labels.unique())
    if unseen:
        notes.append(f"{unseen} of {training.n_classes} classes have no training image and are never predicted")
    if missing := n_without_positive(test.labels) if test.multilabel else 0:
        notes.append(f"{missing} of {test.n_classes} classes have no test image and are in no mean over classes")
    return tuple(notes)


def edge_note(name: str, chosen: float, grid: Sequence[float]) -> tuple[str, ...]:
    """A note that a better value may be outside of the grid, if the chosen one is at its edge."""
    if len(grid) < 2:  # one value, or none: the recipe's
        return ()
    edges = {min(grid): "smallest", max(grid): "largest"}
    if chosen not in edges:
        return ()
    return (f"the chosen {name} = {chosen:g} is the {edges[chosen]} of the grid; a wider grid may give more",)
