"""Progress of opening a data set, which reads the label maps of all images: of tens of thousands it takes minutes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from store.bars import Bars, no_bars

_bars: ContextVar[Bars | None] = ContextVar("bars", default=None)


@contextmanager
def opening_with(bars: Bars | None) -> Iterator[None]:
    """A context in which `opening_bar` shows these bars; the forms of data sets need not hand them on."""
    token = _bars.set(bars)
    try:
        yield
    finally:
        _bars.reset(token)


def opening_bar(what: str, total: int, unit: str) -> AbstractContextManager[Callable[[int], None]]:
    """A bar, or none where a data set is opened without one or is open already."""
    return (_bars.get() or no_bars)(what, total, unit)
