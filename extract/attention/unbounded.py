"""Statistics without bound."""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def unbounded(statistic: F) -> F:
    """Declare a statistic a ratio without bound: one image can carry a mean over images anywhere, so medians are shown."""
    statistic.__dict__["unbounded"] = True
    return statistic
