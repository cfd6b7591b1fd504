"""Runs in processes of this machine: each is a fork of a server that has imported what is slow to import."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess

from pipelines.engines.agenda import Agenda
from pipelines.engines.run import Run, run_command

CONTEXT = multiprocessing.get_context("forkserver")
SECONDS = 10  # that a process has to end
LOOK_S = 1.0  # after which is looked whether it is time to stop
KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class Place:
    """Where one run is computed at a time.

    Attributes:
        environment: variables of its process, such as the GPU that it sees.
        n_threads: of torch on a CPU; None: as the environment says.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    n_threads: int | None = None


def run_in_forks(agenda: Agenda, places: Sequence[Place]) -> None:
    """Compute all runs, one in each place at a time. Whatever ends this, no run goes on after it."""
    running: dict[int, tuple[ForkServerProcess, Run]] = {}
    try:
        while not agenda.is_done:
            for number, place in enumerate(places):
                if number not in running and (run := agenda.take()) is not None:
                    process = CONTEXT.Process(target=_be, args=(run, os.getcwd(), place), daemon=True)
                    try:
                        process.start()
                        running[number] = process, run
                    except OSError:  # it was killed before it had its arguments
                        agenda.ended(run, KILLED)
            wait([process.sentinel for process, _ in running.values()], LOOK_S)
            for number, (process, run) in list(running.items()):
                if process.exitcode is not None:
                    del running[number]
                    agenda.ended(run, process.exitcode)
                elif agenda.stops():  # each time, as it may not listen yet
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid or 0, signal.SIGUSR1)
    finally:
        end_all([process for process, _ in running.values()])


def end_all(processes: Sequence[ForkServerProcess]) -> None:
    """End processes; those that do not end by themselves are killed."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()


def obey_parent() -> None:
    """Let this process end with the one that started it, and not with Ctrl-C, which reaches all: that one decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _be(run: Run, folder: str, place: Place) -> None:
    obey_parent()
    sys.exit(run_command(run, folder, place.environment, place.n_threads))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
