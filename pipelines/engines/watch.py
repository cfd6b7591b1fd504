"""Where engines tell how far they are."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Watch:
    """Where an engine tells how far it is.

    Attributes:
        progress: called with the number of images, or of runs, done since the last call; negative for those that are to be
            done again.
        warn: called with what a user should know.
        stops: whether to hand out no more units or runs, and to end when those that were are done.
    """

    progress: Callable[[int], None]
    warn: Callable[[str], None]
    stops: Callable[[], bool]
