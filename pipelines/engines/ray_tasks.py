"""Runs as tasks of a Ray cluster, each in a process of its own, with a GPU where there are any."""

import os
import signal
from typing import Any

from pipelines.engines.agenda import Agenda
from pipelines.engines.command import run_command
from pipelines.engines.ray_cluster import Share, resources
from pipelines.engines.run import Run

SECONDS = 1.0  # after which is looked whether it is time to stop


def run_in_tasks(agenda: Agenda, device: str, at_a_time: int | None) -> None:
    """Compute all runs; a node that dies takes none of them with it.

    The process of a task is the run itself: where Ray kills it, nothing of it goes on, and it has no successor in its process.

    Args:
        device: auto, cpu or cuda.
        at_a_time: how many runs at most; None: all wait for room, which lets a cluster grow.
    """
    import ray

    share = Share.of_each(device, at_a_time, resources())
    task = ray.remote(max_calls=1, max_retries=0, num_cpus=share.cores, num_gpus=share.gpus)(run_command)
    calls: dict[Any, Run] = {}
    try:
        while not agenda.is_done:
            while (at_a_time is None or len(calls) < at_a_time) and (run := agenda.take()) is not None:
                calls[task.remote(run, os.getcwd(), {}, share.n_threads)] = run
            for call in ray.wait(list(calls), timeout=SECONDS)[0] if calls else ():
                _take(call, calls.pop(call), agenda)
            for call, run in list(calls.items()) if agenda.stops() else ():
                if not run.log.exists():
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
