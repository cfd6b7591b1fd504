"""How a data set is opened, which its form need not hand on: with progress, as thousands of label maps take minutes; and
whether a list may lead out of its folder.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from store.bars import Bars, no_bars

_bars: ContextVar[Bars | None] = ContextVar("bars", default=None)
_outside: ContextVar[bool] = ContextVar("outside", default=False)


@contextmanager
def opening_with(bars: Bars | None, outside: bool = False) -> Iterator[None]:
    """A context in which `opening_bar` shows these bars, and in which `is_outside_allowed` answers `outside`."""
    tokens = _bars.set(bars), _outside.set(outside)
    try:
        yield
    finally:
        _bars.reset(tokens[0])
        _outside.reset(tokens[1])


def is_outside_allowed() -> bool:
    """Whether the paths of a .csv may lead out of its folder."""
    return _outside.get()


def opening_bar(what: str, total: int, unit: str) -> AbstractContextManager[Callable[[int], None]]:
    """A bar, or none where a data set is opened without one or is open already."""
    return (_bars.get() or no_bars)(what, total, unit)
