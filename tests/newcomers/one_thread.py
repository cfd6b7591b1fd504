"""Units are computed by a thread of this process, the last one first, and runs by a process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pipelines.engines.engine import Engine
from pipelines.engines.watch import Watch

if TYPE_CHECKING:
    from extract.encoders import Encoder
    from extract.handing import Job, Record
    from extract.settings import Engine as HandsOut
    from pipelines.engines.agenda import Agenda


@dataclass(frozen=True)
class OneThread(Engine):
    """The worker of an actor, without its cluster."""

    def workers(self, load: "Callable[[str], Encoder]", watch: Watch) -> "HandsOut":
        return partial(self._run, load, watch)

    def _run(
        self,
        load: "Callable[[str], Encoder]",
        watch: Watch,
        job: "Job",
        todo: "Mapping[int, Sequence[str]]",
        add: "Callable[[Record], None]",
    ) -> None:
        from extract.handing import Handed
        from pipelines.engines.actor import Actor

        actor = Actor()
        actor.begin(job, load, self.device, None)
        for unit in sorted(todo, reverse=True):
            add(actor.compute(Handed(unit, todo[unit]))["record"])
            watch.progress(job.n_images(unit))

    def run_all(self, agenda: "Agenda") -> None:
        from pipelines.engines.forks import Place, run_in_forks

        run_in_forks(agenda, [Place()])
