"""Aggregators by name. To add one: a class in a file of its own here, and its line in AGGREGATORS."""

from typing import Any

from probe.aggregators.abmilp import AbMILP
from probe.aggregators.aggregator import Aggregator, Features, Pooled
from probe.aggregators.average import Average
from probe.aggregators.cls import Cls
from store import BeyondClsError
from store.errors import unknown

AGGREGATORS: dict[str, type[Aggregator]] = {
    "cls": Cls,
    "average": Average,
    "abmilp": AbMILP,
}


def make_aggregator(name: str, dim: int, **options: Any) -> Aggregator:
    """An aggregator for tokens of width `dim`.

    Raises: BeyondClsError: unknown name (with the nearest one), or options that it does not take.
    """
    if name not in AGGREGATORS:
        raise BeyondClsError(unknown("aggregator", name, AGGREGATORS))
    try:
        return AGGREGATORS[name](dim, **options)
    except TypeError as error:
        raise BeyondClsError(f"aggregator {name!r} was given {options}: {error}") from error


__all__ = ["AGGREGATORS", "AbMILP", "Aggregator", "Average", "Cls", "Features", "Pooled", "make_aggregator"]
