"""Processes that begin with what is slow to import: a server imports it once, and each of them is a fork of it.

What they run is a function of a module; it and its arguments are pickled, as for any process of `multiprocessing`.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "zarr", "extract.run", "extract.encoders", "pipelines.cli"])


def start(function: Callable[..., object], *arguments: Any) -> ForkServerProcess:
    process = CONTEXT.Process(target=function, args=arguments)
    process.start()
    return process


def status(function: Callable[..., object], *arguments: Any) -> int:
    """Exit status of a process; negative for a signal that killed it."""
    process = start(function, *arguments)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def kill_after(n: int, *calls: tuple[Any, str]) -> None:
    """Let this process be killed at the call after the n-th of these functions, each named by what it belongs to."""
    left = [n]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **options)

        return call

    for owner, name in calls:
        setattr(owner, name, counted(getattr(owner, name)))
