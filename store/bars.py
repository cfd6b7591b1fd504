"""Progress of what takes long, shown by whoever calls it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

# (what, total, unit) to a context that gives a function to report progress by; `beyondcls.progress_bar` is one.
Bars = Callable[[str, int, str], AbstractContextManager[Callable[[int], None]]]


def no_bars(what: str, total: int, unit: str) -> AbstractContextManager[Callable[[int], None]]:
    """Show nothing."""
    return nullcontext(lambda n: None)
