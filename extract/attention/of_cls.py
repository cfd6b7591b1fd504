"""Statistics of [cls]."""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def of_cls(statistic: F) -> F:
    """Declare a statistic one that only encoders with [cls] can have."""
    statistic.__dict__["of_cls"] = True
    return statistic
