"""Protocols without gradient steps, by name. To add one: a class in its own file here, and its line in CLOSED."""

from dataclasses import fields
from typing import Any

from probe.closed.logistic import Logistic
from probe.closed.neighbours import Neighbours
from probe.closed.protocol import Closed, Result, Selection, Vectors
from probe.closed.ridge import Ridge
from store import BeyondClsError
from store.errors import unknown

CLOSED: dict[str, type[Closed]] = {
    "logistic": Logistic,
    "knn": Neighbours,
    "ridge": Ridge,
}
# What options of these types take; others, such as grids, are checked by their protocol.
TAKEN: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}


def described(closed: Closed) -> dict[str, Any]:
    """Name and options of a protocol, plain values."""
    return {"name": next((n for n, kind in CLOSED.items() if type(closed) is kind), type(closed).__name__), **vars(closed)}


def make_closed(name: str, **options: Any) -> Closed:
    """A protocol, ready to `fit`. Lists from a configuration are taken as tuples.

    Raises:
        BeyondClsError: unknown name or option (with the nearest one), or values that cannot be.
    """
    if name not in CLOSED:
        raise BeyondClsError(unknown("protocol", name, CLOSED))
    known = {option.name: option for option in fields(CLOSED[name])}  # type: ignore[arg-type]
    for option, value in options.items():
        if option not in known:
            raise BeyondClsError(unknown(f"option of {name!r}", option, known))
        kind = known[option].type
        if kind in TAKEN and (not isinstance(value, TAKEN[kind]) or isinstance(value, bool) is not (kind is bool)):
            raise BeyondClsError(f"{option} of {name!r} is {value!r}, expected a value such as {known[option].default!r}")
    return CLOSED[name](**{option: tuple(v) if isinstance(v, list) else v for option, v in options.items()})


__all__ = ["CLOSED", "Closed", "Logistic", "Neighbours", "Result", "Ridge", "Selection", "Vectors", "make_closed"]
