"""Units are computed by this process, and runs one after the other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.engines.agenda import Agenda
from pipelines.engines.engine import Engine
from pipelines.engines.watch import Watch

if TYPE_CHECKING:
    from extract.encoders import Encoder


@dataclass(frozen=True)
class Here(Engine):
    """No workers. Of several tasks that share a set, each is one of these."""

    def workers(self, load: "Callable[[str], Encoder]", watch: Watch) -> None:
        return None

    def run_all(self, agenda: Agenda) -> None:
        from pipelines.engines.forks import CONTEXT, Place, run_in_forks

        CONTEXT.set_forkserver_preload(agenda.imports)
        run_in_forks(agenda, [Place()])
