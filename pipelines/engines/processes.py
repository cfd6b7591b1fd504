"""Units and runs are computed by processes of this machine, one for each GPU, or several on the CPU."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from signal import Signals
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.engines.agenda import Agenda
from pipelines.engines.engine import Engine
from pipelines.engines.forks import CONTEXT, SECONDS, Place, run_in_forks
from pipelines.engines.watch import Watch
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.encoders import Encoder
    from extract.handing import Handed, Job, Record
    from extract.settings import Engine as HandsOut
    from pipelines.engines.ledger import Ledger

CORES = 4  # of a worker on a CPU, by default


@dataclass(frozen=True)
class Processes(Engine):
    """A worker for each GPU; without one, `tasks` of them, which divide the cores among them."""

    options: ClassVar[tuple[str, ...]] = ("tasks", "gpus", "tries")

    def workers(self, load: "Callable[[str], Encoder]", watch: Watch) -> "HandsOut":
        return partial(self._run, self.devices(), load, watch)

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

    def _run(
        self,
        devices: Sequence[str],
        load: "Callable[[str], Encoder]",
        watch: Watch,
        job: "Job",
        todo: "Mapping[int, Sequence[str]]",
        add: "Callable[[Record], None]",
    ) -> None:
        from pipelines.engines.ledger import Ledger

        ledger = Ledger(job, todo, add, self.tries, watch)
        CONTEXT.set_forkserver_preload(["pipelines.engines.serving"])
        used = list(devices)[: len(todo)]
        Pool(ledger, [(job, load, device, threads_of_each(len(used))) for device in used], self.tries).run()


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


@dataclass
class Started:
    """A worker that was started.

    Attributes:
        held: units that it has and has not written, in the order in which it computes them.
        computed: how many of these it has computed.
        waits: it needs a unit to go on.
        has_begun: it has loaded the encoder.
    """

    process: ForkServerProcess
    connection: Connection
    held: list[int] = field(default_factory=list)
    computed: set[int] = field(default_factory=set)
    waits: bool = False
    has_begun: bool = False

    @property
    def computing(self) -> int | None:
        """The unit that it computes, or else writes."""
        return next((unit for unit in self.held if unit not in self.computed), self.held[0] if self.held else None)


class Pool:
    """Workers, one for each of `arguments`, which are those of `serve`. A worker that ends early is replaced.

    Args:
        tries: times that a worker may die before it has begun.
    """

    def __init__(self, ledger: "Ledger", arguments: Sequence[tuple[Any, ...]], tries: int):
        self._ledger, self._arguments, self._tries = ledger, arguments, tries
        self._workers: dict[int, Started] = {}
        self._deaths = 0  # of workers that had not begun, since the last one that had

    def run(self) -> None:
        """Work until all units are written.

        Raises:
            BeyondClsError: a unit has failed too often, or workers cannot begin.
        """
        try:
            for index in range(len(self._arguments)):
                self._start(index)
            while not self._ledger.is_done:
                heard = wait([worker.connection for worker in self._workers.values()])
                for index, worker in list(self._workers.items()):
                    if worker.connection in heard:
                        self._hear(index, worker)
                self._give()
        finally:
            self._stop()

    def _start(self, index: int) -> None:
        from pipelines.engines.serving import serve

        while True:
            connection, remote = CONTEXT.Pipe()
            process = CONTEXT.Process(target=serve, args=(remote, *self._arguments[index]), daemon=True)
            try:
                process.start()
                break
            except OSError as error:  # it was killed before it had its arguments
                self._count_death(f"it could not be started ({error})")
            finally:
                remote.close()
        self._workers[index] = Started(process, connection)

    def _hear(self, index: int, worker: Started) -> None:
        """Take one message of a worker, or notice that it has died."""
        try:
            kind, *content = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(index, worker)
            return
        if kind == "take":
            worker.has_begun, self._deaths = True, 0
            (worker.waits,) = content
            if not worker.waits:
                self._hand(worker, self._ledger.take())
        elif kind == "computed":
            worker.computed.add(*content)
        elif kind == "progress" and worker.computing is not None:
            self._ledger.progress(worker.computing, *content)
        elif kind == "warn":
            self._ledger.warn(*content)
        elif kind == "written":
            (record,) = content
            self._ledger.written(record)
            worker.held.remove(record["unit"])
        elif kind == "failed":  # it ends, and is replaced then
            unit, problem, is_final = content
            if unit is None:
                raise BeyondClsError(problem)
            worker.held.remove(unit)
            self._ledger.lost([unit])
            self._ledger.failed(unit, problem, is_final)

    def _hand(self, worker: Started, unit: "Handed | None") -> None:
        worker.waits = False
        if unit is not None:
            worker.held.append(unit.number)
        with contextlib.suppress(OSError):  # it has died, which is noticed next
            worker.connection.send(unit)

    def _give(self) -> None:
        """Hand units to those who wait for one."""
        for worker in self._workers.values():
            if worker.waits and len(self._ledger):
                self._hand(worker, self._ledger.take())

    def _replace(self, index: int, worker: Started) -> None:
        worker.process.join()
        worker.connection.close()
        code, unit = worker.process.exitcode, worker.computing
        self._ledger.lost(worker.held)
        if code:
            problem = f"its process was killed ({Signals(-code).name})" if code < 0 else f"its process ended with status {code}"
            problem += ", perhaps for lack of memory" if code == -Signals.SIGKILL else ""
            if unit is not None:
                self._ledger.failed(unit, problem)
            elif not worker.has_begun:
                self._count_death(problem)
        if not self._ledger.is_done:
            self._start(index)

    def _count_death(self, problem: str) -> None:
        """Count a worker that has died before it had loaded the encoder."""
        self._deaths += 1
        if self._deaths >= self._tries:
            raise BeyondClsError(f"a worker could not load the encoder: {problem}; give fewer --tasks or --gpus")

    def _stop(self) -> None:
        """End all workers: those that have nothing to do by themselves."""
        for worker in self._workers.values():
            if self._ledger.is_done:
                self._hand(worker, None)
            else:
                worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join(SECONDS)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
