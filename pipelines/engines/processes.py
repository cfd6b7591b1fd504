"""Runs are processes of this machine, one for each GPU, or several on the CPU."""

import os
from dataclasses import dataclass
from multiprocessing.forkserver import ensure_running
from typing import ClassVar

from pipelines.engines.agenda import Agenda
from pipelines.engines.engine import Engine
from pipelines.engines.forks import CONTEXT, Place, run_in_forks
from store import BeyondClsError

CORES = 4  # of a worker on a CPU, by default


@dataclass(frozen=True)
class Processes(Engine):
    """A worker for each GPU; without one, `tasks` of them, which divide the cores among them."""

    options: ClassVar[tuple[str, ...]] = ("tasks", "gpus", "tries")

    def n_tasks(self, n_units: int) -> int:
        return min(len(self.devices()), n_units)

    def run_all(self, agenda: Agenda) -> None:
        CONTEXT.set_forkserver_preload(agenda.imports)
        ensure_running()  # it imports while this process does
        devices = self.devices()[: len(agenda.runs)]
        run_in_forks(agenda, [Place(alone(device), threads_of_each(len(devices))) for device in devices])

    def devices(self) -> list[str]:
        """The device of each worker.

        Raises:
            BeyondClsError: there are not as many GPUs.
        """
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
    """Cores that this process may use."""
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
