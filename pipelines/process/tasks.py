"""A process of a command: whether it is one of several, and whether it is asked to stop where it can go on later."""

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

# Exit statuses, of sysexits.h: of a command that has stopped so; of an error in the software.
TO_BE_CONTINUED, UNFORESEEN = 75, 70


def stops_at_signal() -> Callable[[], bool]:
    """Whether SIGUSR1 has come since now, which does nothing else: Slurm sends it before the time of a job ends."""
    stopped = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        stopped.set()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, stop)
        atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)  # one that comes now must not change the exit status
    return stopped.is_set


def is_task() -> bool:
    """Whether this process is one of several that were started together."""
    return "RANK" in os.environ


def is_first() -> bool:
    """Whether this process is the only one, or the one of torchrun's that prints messages."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"
