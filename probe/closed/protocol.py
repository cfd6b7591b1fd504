"""Protocols without gradient steps: labelled vectors, one an image, in; scores and measures of test vectors out."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from probe.metrics import MULTILABEL, PER_IMAGE, n_without_positive
from probe.sources import indistinct
from probe.subsets import hold_out
from store import BeyondClsError

METRICS = ("cosine", "euclidean")  # by which neighbours are near
Candidate = TypeVar("Candidate")  # a value, or a tuple of values of several hyperparameters


@dataclass(frozen=True, eq=False, init=False)
class Vectors:
    """One vector per image, and its labels, given as arrays or tensors.

    Attributes:
        x: float32 or float64; pooled by an aggregator without parameters.
        labels: the class, 0…K - 1, int64 [N]; or 0 and 1 for each class, [N, K], with several labels an image.
        n_classes: K; of the data set, since a subset may lack some.

    Raises:
        BeyondClsError: shapes that do not fit, another dtype, NaN or infinity, labels outside of 0…K - 1, no image.
    """

    x: Float[Tensor, "N W"]
    labels: Shaped[Tensor, "N *K"]
    n_classes: int

    def __init__(self, x: Tensor | np.ndarray, labels: Tensor | np.ndarray, n_classes: int):
        x = torch.as_tensor(x)
        labels = torch.as_tensor(labels, device=x.device)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "labels", labels if labels.ndim > 1 else labels.long())
        object.__setattr__(self, "n_classes", n_classes)
        if x.ndim != 2 or len(x) != len(labels) or not len(x):
            raise BeyondClsError(
                f"vectors {tuple(x.shape)} and labels {tuple(labels.shape)} do not fit, expected [N, W] and [N] or [N, K]; "
                "pool tokens to one vector per image, and take the labels of the same rows"
            )
        if x.dtype not in (torch.float32, torch.float64):
            raise BeyondClsError(f"vectors are {x.dtype}, expected float32 or float64; convert them with .float()")
        if bad := int((~x.isfinite()).any(-1).sum()):
            row = int((~x.isfinite()).any(-1).nonzero()[0])
            raise BeyondClsError(f"{bad} of {len(x)} vectors hold NaN or infinity, first row {row}; leave out, or use float32")
        highest_label = 1 if self.multilabel else self.n_classes - 1
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high > highest_label:
            rows = "np.flatnonzero(store.labelled)"
            raise BeyondClsError(f"labels are {low} to {high}, expected 0 to {highest_label}; take the rows {rows}")
        if self.multilabel and labels.shape[1] != self.n_classes:
            raise BeyondClsError(f"labels have {labels.shape[1]} columns, expected {self.n_classes}, one a class")

    def __len__(self) -> int:
        """Number of images."""
        return len(self.x)

    @property
    def multilabel(self) -> bool:
        """Whether an image may have no label, or several."""
        return self.labels.ndim > 1

    @property
    def criterion(self) -> str:
        """The measure that hyperparameters are selected by."""
        return "map" if self.multilabel else "top1"

    def rows(self, rows: Any) -> "Vectors":
        """The vectors of some of the images."""
        index = torch.as_tensor(rows, device=self.x.device)
        return Vectors(self.x[index], self.labels[index], self.n_classes)


def check_pair(training: Vectors, test: Vectors) -> None:
    """Refuse two sets that do not belong together.

    Raises:
        BeyondClsError: other widths, classes or kinds of labels, or fewer than two classes to tell apart.
    """
    width, other = training.x.shape[1], test.x.shape[1]
    if width != other:
        raise BeyondClsError(f"training vectors are {width} wide, test vectors {other}; pool both in the same way")
    if (training.n_classes, training.multilabel) != (test.n_classes, test.multilabel):
        labels = ["several labels" if v.multilabel else "one label" for v in (training, test)]
        kinds = [f"{v.n_classes} classes, {kind} an image" for v, kind in zip((training, test), labels, strict=True)]
        raise BeyondClsError(f"training has {kinds[0]}; test has {kinds[1]}; use splits of one data set")
    if problem := indistinct(training.labels.cpu().numpy()):
        raise BeyondClsError(problem)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Subtract the mean and divide by the standard deviation of the vectors that it was made from; float64."""

    mean: Float[Tensor, "W"]
    std: Float[Tensor, "W"]

    @classmethod
    def from_vectors(cls, x: Float[Tensor, "N W"], standardise: bool) -> "Scaling":
        """Without `standardise` only the mean is subtracted, which changes no model with a free intercept."""
        x = x.double()
        return cls.of(x.mean(0), x.std(0, correction=0), standardise)

    @classmethod
    def of(cls, mean: Float[Tensor, "W"], std: Float[Tensor, "W"], standardise: bool) -> "Scaling":
        """From a mean and a standard deviation that were measured already; float64."""
        # A constant feature stays 0; dividing it by its rounding error would make it a large one.
        unchanged = (std <= 1e-12 * mean.abs()) if standardise else std >= 0
        return cls(mean, std.masked_fill(unchanged, 1.0))

    def __call__(self, x: Float[Tensor, "N W"]) -> Float[Tensor, "N W"]:
        return (x.double() - self.mean) / self.std


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

    @classmethod
    def of(
        cls, training: Vectors, test: Vectors, scores: Tensor, chosen: dict[str, float], selection: Selection[Any], *notes: str
    ) -> "Result":
        """With the measures of the test images, and notes on the classes."""
        return cls(scores, chosen, selection, measured(scores, test), (*notes, *notes_on(training, test)))

    def to_dict(self) -> dict[str, Any]:
        """All but the scores, for JSON."""
        selection = asdict(self.selection)
        return {"chosen": self.chosen, "selection": selection, "metrics": self.metrics, "notes": list(self.notes)}


def measured(scores: Float[Tensor, "N K"], vectors: Vectors, names: Sequence[str] | None = None) -> dict[str, float]:
    """Measures in percent; by default all for the kind of labels. MULTILABEL averages over the classes that some image has."""
    scores, labels = scores.cpu(), vectors.labels.cpu()
    if vectors.multilabel:
        return {name: float(MULTILABEL[name](scores, labels)) for name in names or MULTILABEL}
    return {name: 100 * float(PER_IMAGE[name](scores, labels).double().mean()) for name in names or PER_IMAGE}


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
    edges = {min(grid): "smallest", max(grid): "largest"} if len(grid) > 1 else {}  # one value, or none: the recipe's
    edge = edges.get(chosen)
    return (f"the chosen {name} = {chosen:g} is the {edge} of the grid; a wider grid may give more",) if edge else ()


class Closed(ABC):
    """Base of the protocols.

    A subclass is a frozen dataclass whose fields are its options, checked when it is made. The same vectors give the same
    result: what is random (a hold-out) is fixed by the option `seed`.

    Attributes:
        grid: the option with the values that the hyperparameter is selected from, positive and in any order.
        linear: whether the protocol learns a linear layer, as a head's classifier is.
    """

    grid: ClassVar[str]
    linear: ClassVar[bool] = False

    @abstractmethod
    def fit(self, training: Vectors, test: Vectors) -> Result:
        """Learn from the training images, the hyperparameter included, and score the test images.

        Raises:
            BeyondClsError: sets that do not belong together, or fewer than two classes to tell apart.
        """


def select(
    grid: Sequence[Candidate],
    training: Vectors,
    share: float,
    seed: int,
    scores: Callable[[Vectors, Vectors], Iterable[Tensor]],
) -> Selection[Candidate]:
    """Compare a grid on a stratified hold-out of the training images; a grid of one value needs no hold-out.

    Args:
        scores: of the held-out images (second argument) after learning from the rest (first), for each value of `grid` in turn.

    Raises:
        BeyondClsError: images may have several labels, and none that is held out has one.
    """
    if len(grid) == 1:
        return Selection("nothing", candidates=tuple(grid))
    learnt, held_out = (training.rows(rows) for rows in hold_out(training.labels.cpu().numpy(), share, seed))
    measure = training.criterion
    percent = tuple(measured(values, held_out, (measure,))[measure] for values in scores(learnt, held_out))
    if all(map(math.isnan, percent)):
        raise BeyondClsError(
            f"{measure} of the {len(held_out)} images held out is not a number: none of them has a label; hold out more "
            f"(share is {share:g}), or give a single value so that nothing is selected"
        )
    return Selection("hold-out", measure, len(held_out), tuple(grid), percent)


def check_grid(name: str, grid: Sequence[float], whole: bool = False) -> None:
    """Refuse a grid that cannot be searched.

    Raises:
        BeyondClsError: not a sequence, empty, or a value that is not positive and finite (and whole), or appears twice.
    """
    if not isinstance(grid, Sequence) or isinstance(grid, str):
        raise BeyondClsError(f"{name} is {grid!r}, expected a list of values; give [{grid}] for one")
    if not grid:
        raise BeyondClsError(f"the grid {name} is empty; give one value or more")
    kinds = (int,) if whole else (int, float)
    for value in grid:
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise BeyondClsError(f"{name} holds {value!r}, expected positive {'whole ' if whole else ''}numbers")
    if len(set(grid)) < len(grid):
        raise BeyondClsError(f"{name} is {tuple(grid)}, expected every value once")
