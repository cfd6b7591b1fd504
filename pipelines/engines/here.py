"""Units are computed by this process, and runs one after the other."""

from dataclasses import dataclass

from pipelines.engines.agenda import Agenda
from pipelines.engines.engine import Engine


@dataclass(frozen=True)
class Here(Engine):
    """No workers. Of several tasks that share a set, each is one of these."""

    def n_tasks(self, n_units: int) -> int:
        return 0

    def run_all(self, agenda: Agenda) -> None:
        from pipelines.engines.forks import CONTEXT, Place, run_in_forks

        CONTEXT.set_forkserver_preload(agenda.imports)
        run_in_forks(agenda, [Place()])
