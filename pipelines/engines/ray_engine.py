"""Runs are tasks in a Ray cluster; nodes may come and go."""

from dataclasses import dataclass
from typing import ClassVar

from pipelines.engines.agenda import Agenda
from pipelines.engines.engine import Engine
from pipelines.engines.ray_cluster import connected

MOST = 64  # tasks of an extraction that wait for nodes; one that finds nothing left to do ends at once


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
        from pipelines.engines.ray_tasks import run_in_tasks

        self.check_device()
        with connected(self.address):
            run_in_tasks(agenda, self.device, self.tasks)
