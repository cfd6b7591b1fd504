"""What an attention statistic declares about itself: encoders, reports and the contract of all statistics use it."""

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
class StatisticFacts:
    """Facts about a statistic, none of which is below 0.

    Attributes:
        title: a heading, in words that a reader of the paper knows.
        unit: of its values, as the label of an axis.
        highest: its largest value. A single image can dominate the mean of a ratio without bound, so reports show
            medians.
        uniform: its value where attention is uniform; None for statistics that are not of attention.
        of_cls: only encoders with [cls] can have it.
        of_all_tokens: it is a share of all that a token gives, so that attention to registers lowers it.
        spatial: it depends on where patches are; for others their order does not matter.
        of_norms: of a block it needs the norms of tokens alone; it is given these as tokens of one channel, [B, N, 1], with
            each of several blocks as an image of its own.
    """

    title: str
    unit: str
    highest: OfCounts
    uniform: OfCounts | None = None
    of_cls: bool = False
    of_all_tokens: bool = False
    spatial: bool = False
    of_norms: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether there is a largest value."""
        return self.highest is not infinity

    def __call__(self, statistic: F) -> F:
        """The statistic, with these facts: `@declares(…)` above it."""
        statistic.__dict__["declared"] = self
        return statistic


declares = StatisticFacts


def declared_by(statistic: Callable[..., object]) -> StatisticFacts:
    """The declared facts about a statistic.

    Raises:
        TypeError: it declares none.
    """
    declared = getattr(statistic, "declared", None)
    if not isinstance(declared, StatisticFacts):
        name = getattr(statistic, "__name__", statistic)
        raise TypeError(
            f"the statistic {name} declares nothing, expected @declares(title, unit, highest=…, uniform=…) above it"
        )
    return declared
