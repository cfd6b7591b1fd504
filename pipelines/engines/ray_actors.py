"""Units are computed by actors in a Ray cluster, and runs by its tasks; nodes may come and go."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.engines.agenda import Agenda
from pipelines.engines.engine import Engine
from pipelines.engines.ray_cluster import Share, connected, resources
from pipelines.engines.watch import Watch
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.encoders import Encoder
    from extract.handing import Job, Record
    from extract.settings import Engine as HandsOut
    from pipelines.engines.ledger import Ledger

SECONDS = 5  # after which the cluster is looked at again
DEATHS = 20  # of each actor, without a unit that any of them has written, that are taken for more than bad luck


@dataclass(frozen=True)
class RayActors(Engine):
    """An actor or a run for each GPU of the cluster, or for every four cores, or `tasks` of them.

    Each holds the encoder and writes shards itself, so all nodes must have the project's folder, images and feature sets under
    the same paths. An actor that dies, as its node does, is no failure of its units.
    """

    options: ClassVar[tuple[str, ...]] = ("tasks", "tries", "address")
    cluster: ClassVar[str] = "Ray"

    def workers(self, load: "Callable[[str], Encoder]", watch: Watch) -> "HandsOut":
        import ray  # noqa: F401  # without it the command says so before it computes anything

        self.check_device()
        return partial(self._run, load, watch)

    def _run(
        self,
        load: "Callable[[str], Encoder]",
        watch: Watch,
        job: "Job",
        todo: "Mapping[int, Sequence[str]]",
        add: "Callable[[Record], None]",
    ) -> None:
        from pipelines.engines.ledger import Ledger

        with connected(self.address):
            Crew(Ledger(job, todo, add, self.tries, watch), job, load, self.device, self.tasks, len(todo)).run()

    def run_all(self, agenda: Agenda) -> None:
        from pipelines.engines.ray_tasks import run_in_tasks

        self.check_device()
        with connected(self.address):
            run_in_tasks(agenda, self.device, self.tasks)


@dataclass
class Member:
    """An actor.

    Attributes:
        held: units that it was handed and has not written.
        has_begun: it has loaded the encoder.
    """

    actor: Any
    held: list[int] = field(default_factory=list)
    has_begun: bool = False


class Crew:
    """Actors that come and go with the nodes of a cluster.

    Args:
        device: auto, cpu or cuda.
        tasks: number of actors; None: as many as there is room for.
        limit: of their number.
    """

    def __init__(
        self,
        ledger: "Ledger",
        job: "Job",
        load: "Callable[[str], Encoder]",
        device: str,
        tasks: int | None,
        limit: int,
    ):
        import ray

        from pipelines.engines.actor import CALLS, Actor

        self._ray, self._ledger, self._tasks, self._limit = ray, ledger, tasks, limit
        self._share = Share.of_each(device, tasks, resources())
        actor = ray.remote(Actor)
        self._actor = actor.options(max_concurrency=CALLS + 1, num_cpus=self._share.cores, num_gpus=self._share.gpus)
        # Ray shows an actor its own GPU alone.
        place = ("cuda:0" if self._share.gpus else "cpu", self._share.n_threads)
        self._begin = (ray.put(job), load, *place)
        self._calls: dict[Any, Member] = {}
        self._members: list[Member] = []
        self._deaths = self._most = 0

    def run(self) -> None:
        """Work until all units are written.

        Raises:
            BeyondClsError: a unit has failed too often, or actors cannot begin.
        """
        try:
            while not self._ledger.is_done:
                self._grow()
                self._hand_out()
                for call in self._ray.wait(list(self._calls), timeout=SECONDS)[0]:
                    if call in self._calls:
                        self._take(call, self._calls.pop(call))
        finally:
            for member in self._members:
                self._ray.kill(member.actor)

    def _grow(self) -> None:
        """Start as many actors as are missing; Ray places them where there is room, now or later."""
        wanted = min(self._tasks or self._share.room(resources()), self._limit)
        self._most = max(self._most, wanted)
        for _ in range(wanted - len(self._members)):
            member = Member(self._actor.remote())
            self._members.append(member)
            self._calls[member.actor.begin.remote(*self._begin)] = member

    def _hand_out(self) -> None:
        from pipelines.engines.actor import CALLS

        for n_held in range(CALLS):  # first one for each
            for member in self._members:
                if member.has_begun and len(member.held) == n_held and (unit := self._ledger.take()) is not None:
                    member.held.append(unit.number)
                    self._calls[member.actor.compute.remote(unit)] = member

    def _take(self, call: Any, member: Member) -> None:
        """Take the answer of an actor, or notice that it has died."""
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self._give_up(member)
            self._deaths += 1
            if self._deaths >= DEATHS * self._most:
                raise BeyondClsError(
                    f"actors have died {self._deaths} times in a row, and none of them finished a unit; the last one had units "
                    f"{member.held}: {error}"
                ) from error
            return
        for message in answer.get("warnings", ()):
            self._ledger.warn(message)
        if "record" in answer:
            self._deaths = 0
            self._ledger.written(answer["record"])
            member.held.remove(answer["record"]["unit"])
        elif "unit" in answer:
            self._give_up(member)
            self._ledger.failed(answer["unit"], answer["problem"], answer["is_final"])
        elif "problem" in answer:
            raise BeyondClsError(f"an actor could not begin: {answer['problem']}")
        else:  # it has begun; or a unit before this one failed, whose answer comes
            member.has_begun = True

    def _give_up(self, member: Member) -> None:
        """Do without an actor; others do its units."""
        self._ray.kill(member.actor)
        self._members.remove(member)
        self._calls = {call: other for call, other in self._calls.items() if other is not member}
        self._ledger.lost(member.held)
