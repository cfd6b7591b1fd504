"""Runs are processes of this machine, one for each GPU, or several on the CPU."""

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
from multiprocessing.forkserver import ensure_running
from typing import ClassVar

from pipelines.engines.engine import Agenda, Engine, Run, run_command
from store import BeyondClsError

CORES = 4  # of a worker on a CPU, by default
CONTEXT = multiprocessing.get_context("forkserver")
SECONDS = 10  # that a process has to end
LOOK_S = 1.0  # after which is looked whether it is time to stop


@dataclass(frozen=True)
class Here(Engine):
    """No workers. Of several tasks that share a set, each is one of these."""

    def n_tasks(self, n_units: int) -> int:
        return 0

    def n_places(self, n_runs: int) -> int:
        return 1

    def run_all(self, agenda: Agenda) -> None:
        CONTEXT.set_forkserver_preload(list(agenda.imports))
        run_in_forks(agenda, [Slot()])


@dataclass(frozen=True)
class LocalProcesses(Engine):
    """A worker for each GPU; without one, `tasks` of them, which divide the cores among them."""

    options: ClassVar[tuple[str, ...]] = ("tasks", "gpus", "tries")

    def n_tasks(self, n_units: int) -> int:
        return min(len(self.devices()), n_units)

    def n_places(self, n_runs: int) -> int:
        return self.n_tasks(n_runs)

    def run_all(self, agenda: Agenda) -> None:
        CONTEXT.set_forkserver_preload(list(agenda.imports))
        ensure_running()  # it imports while this process does
        devices = self.devices()[: len(agenda.runs)]
        run_in_forks(agenda, [Slot(alone(device), threads_of_each(len(devices))) for device in devices])

    def devices(self) -> list[str]:
        """The device of each worker; an error if there are not as many GPUs."""
        import torch

        self.check_device()
        n_gpus = 0 if self.device == "cpu" else torch.cuda.device_count()
        wanted = n_gpus if self.gpus == "all" else int(self.gpus or 0)
        if self.gpus is not None and not 0 < wanted <= n_gpus:
            found = f"torch sees {n_gpus} here" if n_gpus else "torch sees none here"
            raise BeyondClsError(f"gpus is {self.gpus}, but {found}; leave it out, or give --tasks N for processes on the CPU")
        n = wanted or self.tasks or n_gpus or max(1, cores() // CORES)
        return [f"cuda:{i % n_gpus}" for i in range(n)] if n_gpus else ["cpu"] * n


def cores() -> int:
    return len(os.sched_getaffinity(0))


def threads_of_each(n: int) -> int | None:
    """Threads of each of n processes, which divide the cores; None where the environment says."""
    return max(1, cores() // n) if "OMP_NUM_THREADS" not in os.environ else None


def alone(device: str) -> dict[str, str]:
    """The environment of a process that sees one device of this process's, `cuda:1`, and no other GPU."""
    if not device.startswith("cuda:"):
        return {}
    number, visible = int(device.partition(":")[2]), os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"CUDA_VISIBLE_DEVICES": visible.split(",")[number].strip() if visible else str(number)}


@dataclass(frozen=True)
class Slot:
    """Where one run is computed at a time: variables of its process, such as the GPU that it sees, and threads of torch on a
    CPU.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    n_threads: int | None = None


def run_in_forks(agenda: Agenda, places: Sequence[Slot]) -> None:
    """Compute all runs, one in each place at a time. However this ends, no run outlives it."""
    running: dict[int, tuple[ForkServerProcess, Run]] = {}
    try:
        while not agenda.is_done:
            for number, place in enumerate(places):
                if number not in running and (run := agenda.take()) is not None:
                    process = CONTEXT.Process(target=_run_worker, args=(run, os.getcwd(), place), daemon=True)
                    try:
                        process.start()
                        running[number] = process, run
                    except OSError:  # it was killed before it had its arguments
                        agenda.ended(run, -signal.SIGKILL)
            wait([process.sentinel for process, _ in running.values()], LOOK_S)
            for number, (process, run) in list(running.items()):
                if process.exitcode is not None:
                    del running[number]
                    agenda.ended(run, process.exitcode)
                elif agenda.stops():  # each time, as it may not listen yet
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid or 0, signal.SIGUSR1)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join(SECONDS)
            if process.exitcode is None:
                process.kill()
                process.join()


def _run_worker(run: Run, folder: str, place: Slot) -> None:
    def end_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all, and the process that started this one decides
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.exit(run_command(run, folder, place.environment, place.n_threads))
