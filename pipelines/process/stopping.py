"""A process that is asked to stop where it can go on later."""

import atexit
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
