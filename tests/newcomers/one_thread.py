"""Runs are processes, one after the other; an extraction is one of them."""

from dataclasses import dataclass

from pipelines.engines.engine import Agenda, Engine


@dataclass(frozen=True)
class OneThread(Engine):
    """One task, which computes all units beside the process of the command."""

    def n_tasks(self, n_units: int) -> int:
        return 1

    def run_all(self, agenda: Agenda) -> None:
        from pipelines.engines.processes import Slot, run_in_forks

        run_in_forks(agenda, [Slot()])
