"""What all engines have in common: the runs that are to be done, and where an engine tells how far it is."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from threading import Event, Thread
from typing import ClassVar

from pipelines.engines.run import MESSAGE, Run, last_lines, problem_in, results_in
from pipelines.process.stopping import TO_BE_CONTINUED, UNFORESEEN
from store import BeyondClsError
from store.format.unfinished import progress_at
from store.places import LocalFolder

TRIES = 3
SECONDS = 1.0  # between two looks at how far a set is
LOSSES = 20  # of a run, each with the machine that it was on, that are taken for more than bad luck


@dataclass(frozen=True)
class Watch:
    """Where an engine tells how far it is.

    Attributes:
        progress: called with the number of images, or of runs, done since the last call; negative for those that are to be
            done again.
        warn: called with what a user should know.
        stops: whether to hand out no more units or runs, and to end when those that were are done.
    """

    progress: Callable[[int], None]
    warn: Callable[[str], None]
    stops: Callable[[], bool]


@contextmanager
def following(
    staged: Callable[[], Path | None], progress: Callable[[int], None], reported: int = 0
) -> Iterator[Callable[[], int]]:
    """Report images of a set's units as records of them appear; yields a function that gives how many were reported.

    Args:
        staged: where the set is staged now, if it is.
        progress: called with the number of images since the last call.
        reported: images that were reported before.
    """
    ended = Event()

    def look() -> None:
        nonlocal reported
        folder = staged()
        if folder is not None and (now := progress_at(LocalFolder(folder))) is not None:
            progress(now.images_done - reported)
            reported = now.images_done

    def keep_looking() -> None:
        while not ended.wait(SECONDS):
            look()

    looking = Thread(target=keep_looking, daemon=True)
    looking.start()
    try:
        yield lambda: reported
    finally:
        ended.set()
        looking.join()
        look()


class Agenda:
    """Hands out runs in order; one that is killed is handed out again, before all others.

    A run that fails is not done again, as it would fail again; others go on.

    Args:
        tries: times that a run may be killed before it has failed.
        watch: `progress` is called with the number of runs that have ended.
        imports: modules that runs import: a server of processes imports them once.
        again: a run that fails for another reason than a mistake of the user's is done again, as one that is killed; and it
            loses little when it is.

    Attributes:
        runs: all of them.
        say: shows a line, e.g. the results of each run.
        n_done: how many of them have succeeded.
        problems: of those that have failed, by name.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        tries: int,
        watch: Watch,
        say: Callable[[str], None],
        imports: Sequence[str] = (),
        again: bool = False,
    ):
        self.runs, self.imports = list(runs), list(imports)
        self.n_done, self.problems = 0, dict[str, str]()
        self.say, self._tries, self._watch, self.again = say, tries, watch, again
        self._todo, self._handed = list(runs), 0
        self._kills: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()

    @property
    def is_done(self) -> bool:
        """Whether all runs have ended, or after a stop those that were handed out."""
        return not self._handed and (not self._todo or self.stops())

    def stops(self) -> bool:
        """Whether it is time to stop: runs that can go on later may end."""
        return self._watch.stops()

    def take(self) -> Run | None:
        """The next run; None if there is none at present, or it is time to stop."""
        if not self._todo or self.stops():
            return None
        self._handed += 1
        return self._todo.pop(0)

    def ended(self, run: Run, status: int) -> None:
        """A run has ended with this status: of a process, or of a shell, which adds 128 to the number of a signal."""
        self._handed -= 1
        if status == 0:
            self.n_done += 1
            self._watch.progress(1)
            for line in results_in(last_lines(run.log), run.name):
                self.say(line)
        elif status == TO_BE_CONTINUED:
            self._todo.insert(0, run)
        elif status < 0 or status > 128:
            self._killed(run, _how(status))
        elif status == UNFORESEEN and self.again:
            self._killed(run, f"failed with: {problem_in(last_lines(run.log))}")
        else:
            self._failed(run, problem_in(last_lines(run.log)))

    def failed(self, run: Run, problem: str) -> None:
        """A run has failed, and is not done again."""
        self._handed -= 1
        self._failed(run, problem)

    def left(self, run: Run) -> None:
        """A run has not begun, and will not."""
        self._handed -= 1
        self._todo.insert(0, run)

    def lost(self, run: Run) -> None:
        """The machine of a run has gone, which is no failure of the run."""
        self._losses[run.name] += 1
        if self._losses[run.name] >= LOSSES:
            self.failed(run, f"the machine that it was on has gone {LOSSES} times")
        else:
            self.left(run)
            self._watch.warn(f"{run.name}: the machine that it was on has gone; it goes on elsewhere")

    def _failed(self, run: Run, problem: str) -> None:
        lines = problem.splitlines()
        shown = "\n".join([*lines[:MESSAGE], *["…"] * (len(lines) > MESSAGE)])
        self.problems[run.name] = f"{shown} (log: {run.log})"
        self._watch.progress(1)
        self._watch.warn(f"{run.name}: failed; see {run.log}")

    def _killed(self, run: Run, how: str) -> None:
        self._kills[run.name] += 1
        if self._kills[run.name] >= self._tries:
            times = "once" if self._tries == 1 else f"{self._tries} times"
            self._failed(run, f"it failed {times}; the last time it {how}")
        else:
            self._todo.insert(0, run)
            self._watch.warn(f"{run.name}: {how}; it is started again, and goes on")


def _how(status: int) -> str:
    """How a run ended with the status of a signal."""
    number = -status if status < 0 else status - 128
    names = {signal.value: signal.name for signal in Signals}
    how = f"was killed ({names[number]})" if number in names else f"ended with status {status}"
    return how + (", perhaps for lack of memory" if names.get(number) == "SIGKILL" else "")


@dataclass(frozen=True)
class Engine(ABC):
    """Where runs are computed, whole commands of this program; an extraction that is shared consists of several.

    Attributes:
        tasks: number of workers.
        gpus: "all" GPUs of this machine, or how many.
        tries: times that a run may be killed before the command fails, or a task of an extraction fail.
        address: of a Ray cluster.
        sbatch: options of sbatch, as one text.
        setup: lines of shell that a task of a job array runs first.
        device: what workers compute on, as for `choose_device`.

    Raises:
        BeyondClsError: a number that cannot be.
    """

    options: ClassVar[tuple[str, ...]] = ()  # of these attributes, those that it reads, except for `device`
    cluster: ClassVar[str] = ""  # what it needs beside this machine

    tasks: int | None = None
    gpus: int | str | None = None
    tries: int = TRIES
    address: str | None = None
    sbatch: str | None = None
    setup: Sequence[str] | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("tasks", "tries"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BeyondClsError(f"{name} is {value}, expected 1 or more")
        if self.tasks is not None and self.gpus is not None:
            raise BeyondClsError(
                f"tasks is {self.tasks} and gpus is {self.gpus}: there is one worker for each GPU; give one of them"
            )

    @abstractmethod
    def n_tasks(self, n_units: int) -> int:
        """Of how many tasks an extraction of so many units consists; 0 if this process computes them.

        Raises:
            BeyondClsError: they cannot be started here.
        """

    @abstractmethod
    def run_all(self, agenda: Agenda) -> None:
        """Have all runs computed, each in a process of its own that ends with this one at the latest.

        Raises:
            BeyondClsError: they cannot be started here.
        """

    def check_device(self) -> None:
        """Refuse a device that several workers would share.

        Raises:
            BeyondClsError: `device` is one of several.
        """
        if self.device not in ("auto", "cpu", "cuda"):
            raise BeyondClsError(
                f"device is {self.device!r}, which is one device for several workers; give auto, cpu or cuda "
                "(CUDA_VISIBLE_DEVICES says which GPUs are used), or --on here"
            )
