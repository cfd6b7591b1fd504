"""How a data set is opened, which its form need not hand on: with progress, as thousands of label maps take minutes; whether
a list may lead out of its folder; and arguments of a function that gives the images.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from store.shown import Bars, no_bars

_bars: ContextVar[Bars | None] = ContextVar("bars", default=None)
_outside: ContextVar[bool] = ContextVar("outside", default=False)
_arguments: ContextVar[Mapping[str, Any] | None] = ContextVar("arguments", default=None)


@contextmanager
def opening_with(bars: Bars | None, outside: bool = False, arguments: Mapping[str, Any] | None = None) -> Iterator[None]:
    """A context in which `opening_bar` shows these bars, and in which the functions below answer what is given here."""
    tokens = _bars.set(bars), _outside.set(outside), _arguments.set(arguments)
    try:
        yield
    finally:
        _bars.reset(tokens[0])
        _outside.reset(tokens[1])
        _arguments.reset(tokens[2])


def is_outside_allowed() -> bool:
    """Whether the paths of a .csv may lead out of its folder."""
    return _outside.get()


def arguments_of_function() -> dict[str, Any]:
    """Arguments of a function that gives images."""
    return dict(_arguments.get() or {})


def opening_bar(what: str, total: int, unit: str) -> AbstractContextManager[Callable[[int], None]]:
    """A bar, or none where a data set is opened without one or is open already."""
    return (_bars.get() or no_bars)(what, total, unit)
