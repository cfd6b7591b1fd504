"""Runs are tasks of a Ray cluster, each in a process of its own, with a GPU where there are any; nodes may come and go."""

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipelines.engines.engine import Agenda, Engine, Run, run_command
from store import BeyondClsError

MOST = 64  # tasks of an extraction that wait for nodes; one that finds nothing left to do ends at once
SECONDS = 1.0  # after which is looked whether it is time to stop
CORES = 4  # of a worker without a GPU, where nodes have as many
PACKAGES = Path(__file__).resolve().parents[2]  # Ray has workers import from the folder in which it is initialised
TOKEN = (
    "put the cluster's token into ~/.ray/auth_token or RAY_AUTH_TOKEN, on this machine and with RAY_AUTH_MODE=token; or unset "
    "RAY_AUTH_MODE, if the cluster has none"
)


@dataclass(frozen=True)
class RayTasks(Engine):
    """A task for each GPU of the cluster, or for every four cores, or `tasks` at a time.

    Each writes shards itself, so all nodes must have the project's folder, images and feature sets under the same paths. A
    task whose node dies resumes elsewhere.
    """

    options: ClassVar[tuple[str, ...]] = ("tasks", "tries", "address")
    cluster: ClassVar[str] = "Ray"

    def n_tasks(self, n_units: int) -> int:
        import ray  # noqa: F401  # without it the command says so before it computes anything

        self.check_device()
        return min(self.tasks or MOST, n_units)

    def run_all(self, agenda: Agenda) -> None:
        """The process of a task is the run itself: where Ray kills it, no part of it goes on, and it has no successor there."""
        self.check_device()
        with connected_to_ray(self.address):
            import ray

            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            cores, gpus, n_threads = share_of(self.device, self.tasks, nodes)
            task = ray.remote(max_calls=1, max_retries=0, num_cpus=cores, num_gpus=gpus)(run_command)
            calls: dict[Any, Run] = {}
            try:
                while not agenda.is_done:
                    # Without `tasks` all wait for room, which lets a cluster grow.
                    while (self.tasks is None or len(calls) < self.tasks) and (run := agenda.take()) is not None:
                        calls[task.remote(run, os.getcwd(), {}, n_threads)] = run
                    for call in ray.wait(list(calls), timeout=SECONDS)[0] if calls else ():
                        run = calls.pop(call)
                        try:
                            agenda.ended(run, ray.get(call))
                        except (ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError):
                            agenda.lost(run)
                        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
                            agenda.ended(run, -signal.SIGKILL)
                        except ray.exceptions.RayError as error:  # e.g. nodes without this program
                            agenda.failed(run, f"Ray could not run it: {str(error).strip()}")
                    for call, run in list(calls.items()) if agenda.stops() else ():
                        if agenda.again or not run.log.exists():  # no signal reaches it
                            ray.cancel(call, force=True)
                            agenda.left(calls.pop(call))
            finally:
                for call in calls:
                    ray.cancel(call, force=True)


@contextmanager
def connected_to_ray(address: str | None) -> Iterator[None]:
    """Be connected to a cluster, unless this process is so already: at an address, at that in RAY_ADDRESS, or of one that is
    started on this machine for as long.
    """
    import ray

    connects = not ray.is_initialized()
    if connects:
        named = address or "the address in RAY_ADDRESS"
        try:
            with chdir(PACKAGES):
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ray.exceptions.RayError as error:  # of authentication
            raise BeyondClsError(f"the Ray cluster at {named} cannot be used ({error}); {TOKEN}") from error
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise BeyondClsError(
                f"no Ray cluster can be used at {named} ({error}); start one with `ray start --head`, correct --address, or "
                f"leave it out: then one is started on this machine. If it asks for a token: {TOKEN}"
            ) from error
    try:
        yield
    finally:
        if connects:
            ray.shutdown()


def share_of(device: str, tasks: int | None, nodes: Sequence[dict[str, float]]) -> tuple[int, int, int | None]:
    """What a worker gets: cores, as Ray counts them; GPUs, 1 or 0; and on a CPU the threads of torch.

    A GPU for each worker, or if there are none four cores, or fewer if there are to be more `tasks`. `nodes`: resources of
    each.
    """
    if device == "cuda" or (device == "auto" and any(node.get("GPU", 0) >= 1 for node in nodes)):
        return 1, 1, None
    of_nodes = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1] or [1]
    cores = max(1, min(CORES, *of_nodes, sum(of_nodes) // (tasks or 1)))
    # Ray sets OMP_NUM_THREADS itself, and the last bits of results depend on it.
    return cores, 0, int(os.environ.get("OMP_NUM_THREADS") or cores)
