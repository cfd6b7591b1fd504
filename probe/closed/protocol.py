"""The interface of protocols without gradient steps: labelled vectors in, scores and measures of test vectors out."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from torch import Tensor

from probe.closed.result import Candidate, Result, Selection, criterion, measured
from probe.closed.vectors import Vectors
from probe.subsets import hold_out
from store import BeyondClsError


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
    measure = criterion(training)
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
