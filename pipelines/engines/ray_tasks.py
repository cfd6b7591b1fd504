"""Runs are tasks of a Ray cluster, each in a process of its own, with a GPU where there are any; nodes may come and go."""

import os
import signal
from dataclasses import dataclass
from typing import Any, ClassVar

from pipelines.engines.agenda import Agenda
from pipelines.engines.command import run_command
from pipelines.engines.engine import Engine
from pipelines.engines.ray_cluster import Share, connected, resources
from pipelines.engines.run import Run

MOST = 64  # tasks of an extraction that wait for nodes; one that finds nothing left to do ends at once
SECONDS = 1.0  # after which is looked whether it is time to stop


@dataclass(frozen=True)
class RayTasks(Engine):
    """A task for each GPU of the cluster, or for every four cores, or `tasks` at a time.

    Each writes shards itself, so all nodes must have the project's folder, images and feature sets under the same paths. A
    task whose node dies goes on elsewhere.
    """

    options: ClassVar[tuple[str, ...]] = ("tasks", "tries", "address")
    cluster: ClassVar[str] = "Ray"

    def n_tasks(self, n_units: int) -> int:
        import ray  # noqa: F401  # without it the command says so before it computes anything

        self.check_device()
        return min(self.tasks or MOST, n_units)

    def run_all(self, agenda: Agenda) -> None:
        """The process of a task is the run itself: where Ray kills it, nothing of it goes on, and it has no successor there."""
        self.check_device()
        with connected(self.address):
            self._run(agenda)

    def _run(self, agenda: Agenda) -> None:
        import ray

        share = Share.of_each(self.device, self.tasks, resources())
        task = ray.remote(max_calls=1, max_retries=0, num_cpus=share.cores, num_gpus=share.gpus)(run_command)
        calls: dict[Any, Run] = {}
        try:
            while not agenda.is_done:
                # Without `tasks` all wait for room, which lets a cluster grow.
                while (self.tasks is None or len(calls) < self.tasks) and (run := agenda.take()) is not None:
                    calls[task.remote(run, os.getcwd(), {}, share.n_threads)] = run
                for call in ray.wait(list(calls), timeout=SECONDS)[0] if calls else ():
                    _take(call, calls.pop(call), agenda)
                for call, run in list(calls.items()) if agenda.stops() else ():
                    if agenda.again or not run.log.exists():  # no signal reaches it
                        ray.cancel(call, force=True)
                        agenda.left(calls.pop(call))
        finally:
            for call in calls:
                ray.cancel(call, force=True)


def _take(call: Any, run: Run, agenda: Agenda) -> None:
    """Take the exit status of a run, or notice that its process or its node has died."""
    import ray

    try:
        agenda.ended(run, ray.get(call))
    except (ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError):
        agenda.lost(run)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
        agenda.ended(run, -signal.SIGKILL)
    except ray.exceptions.RayError as error:  # e.g. nodes without this program
        agenda.failed(run, f"Ray could not run it: {str(error).strip()}")
