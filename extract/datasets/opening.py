"""What concerns the opening of a data set and its form need not hand on: progress, as thousands of label maps take minutes;
whether a list may lead out of its folder; arguments of a function that gives the images; and what the list is made of.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from store.shown import Bars, no_bars

State = tuple[int, int, int]  # of a file or folder: size, time of change in ns, inode
GONE: State = (-1, -1, -1)
NEVER: State = (-2, -2, -2)  # of none

_bars: ContextVar[Bars | None] = ContextVar("bars", default=None)
_outside: ContextVar[bool] = ContextVar("outside", default=False)
_arguments: ContextVar[Mapping[str, Any] | None] = ContextVar("arguments", default=None)
_sources: ContextVar[dict[str, State] | None] = ContextVar("sources", default=None)


@contextmanager
def opening_with(
    bars: Bars | None, outside: bool = False, arguments: Mapping[str, Any] | None = None
) -> Iterator[Mapping[str, State]]:
    """A context in which `opening_bar` shows these bars, and in which the functions below answer what is given here.

    It gives the states of all that `made_of` has named.
    """
    sources: dict[str, State] = {}
    tokens = _bars.set(bars), _outside.set(outside), _arguments.set(arguments), _sources.set(sources)
    try:
        yield sources
    finally:
        _sources.reset(tokens[3])
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


def made_of(*paths: str | Path, lasts: bool = True) -> None:
    """Say that the list of images depends on a folder or file, before it is listed or read; or on whether there is one.

    `lasts`: whether that is seen by its state, as long as the list is used.
    """
    if (sources := _sources.get()) is not None:
        for path in map(str, paths):
            if not lasts:
                sources[path] = NEVER
            elif path not in sources:
                sources[path] = state_of(path)


def state_of(path: str | Path) -> State:
    """Of a file or folder; GONE where it cannot be looked at."""
    with suppress(OSError, ValueError):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns, status.st_ino & (1 << 63) - 1
    return GONE
