"""What an attention statistic declares of itself: encoders, reports and the contract of all statistics go by it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])
OfCounts = Callable[[int, int], float]  # of N tokens, T of them patches


def infinity(n_tokens: int, n_patches: int) -> float:
    """The largest value of a ratio without bound."""
    return math.inf


@dataclass(frozen=True)
class Declared:
    """Facts of a statistic. None is below 0.

    Attributes:
        title: what it is, as a heading; in words that a reader of the paper knows.
        unit: of its values, as an axis says it.
        highest: its largest value. Of a ratio without bound one image can carry a mean over images anywhere, so reports show
            medians.
        uniform: its value where attention is uniform; None for what is no statistic of attention.
        of_cls: only encoders with [cls] can have it.
        of_all_tokens: it is a share of all that a token gives, so that what registers are given lowers it.
        spatial: it depends on where patches lie; of others their order does not matter.
    """

    title: str
    unit: str
    highest: OfCounts
    uniform: OfCounts | None = None
    of_cls: bool = False
    of_all_tokens: bool = False
    spatial: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether there is a largest value."""
        return self.highest is not infinity


def declares(
    title: str,
    unit: str,
    highest: OfCounts,
    uniform: OfCounts | None = None,
    of_cls: bool = False,
    of_all_tokens: bool = False,
    spatial: bool = False,
) -> Callable[[F], F]:
    """Give a statistic its facts; see `Declared`."""

    def decorated(statistic: F) -> F:
        statistic.__dict__["declared"] = Declared(title, unit, highest, uniform, of_cls, of_all_tokens, spatial)
        return statistic

    return decorated


def declared_by(statistic: Callable[..., object]) -> Declared:
    """Facts of a statistic.

    Raises:
        TypeError: it declares none.
    """
    declared = getattr(statistic, "declared", None)
    if not isinstance(declared, Declared):
        name = getattr(statistic, "__name__", statistic)
        raise TypeError(
            f"the statistic {name} declares nothing, expected @declares(title, unit, highest=…, uniform=…) above it"
        )
    return declared
