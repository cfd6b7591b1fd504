"""What all engines have in common: runs, each a whole command of this program in a process of its own, of which an agenda says
which is next; what their logs say of their end; and where an engine tells how far it is.
"""

import os
import platform
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, ClassVar

from pipelines.process.command_log import recorded_command
from pipelines.process.tasks import TO_BE_CONTINUED, UNFORESEEN
from store import BeyondClsError
from store.format.unfinished import progress_at
from store.places import LocalFolder

if TYPE_CHECKING:
    from store import FeatureWriter

LOGS = ".runs"  # next to what runs write
# By name: the command line imports engines, not the other way round, and no stage of DVC depends on how it is started.
COMMAND_LINE = "pipelines.cli"
ENDED = "beyondcls ended with status "
BEGUN = "$ "  # and the command: a log has all that was done, one after the other
WIDTH = "400"  # in characters: lines are not broken
EXCERPT = 5  # lines of a log in which there is no message of ours
MESSAGE = 6  # lines of a message that are shown of several runs
TRIES = 3
SECONDS = 1.0  # between two looks at how far a set is
JOIN = "--join"  # and where the set is staged: a task that computes units of a set which another process finishes
IMPORTS = ("pipelines.extract", "extract.run", "extract.encoders")  # which tasks of an extraction import
LOSSES = 20  # of a run, each with the machine that it was on, that are taken for more than bad luck


@dataclass(frozen=True)
class Run:
    """A command that can be given again: it resumes where it was killed, and ends at once where it is done.

    Attributes:
        name: of what it writes, for messages.
        arguments: of `beyondcls`; it computes in its own process.
        log: file for its output, an absolute path.
    """

    name: str
    arguments: tuple[str, ...]
    log: Path

    @classmethod
    def writing(cls, out: str, arguments: tuple[str, ...]) -> "Run":
        """A run that writes into a folder; its log is OUT's parent/.runs/NAME.log."""
        folder = Path(os.path.abspath(out))
        return cls(str(Path(out)), arguments, folder.parent / LOGS / f"{folder.name}.log")

    @property
    def command(self) -> str:
        """As logs show it: without secrets of addresses."""
        return recorded_command(self.arguments)


def run_command(run: Run, folder: str, environment: Mapping[str, str], n_threads: int | None) -> int:
    """Turn this process into that of a command, in a folder and with these variables in addition to its own, and return its
    exit status.

    What it says goes to the log. `n_threads`: of torch on a CPU; None: as the environment says.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the command listens
    os.chdir(folder)
    os.environ.update({"COLUMNS": WIDTH, **environment})
    run.log.parent.mkdir(parents=True, exist_ok=True)
    log = run.log.open("a", buffering=1)
    for number in (1, 2):  # what libraries write, too
        os.dup2(log.fileno(), number)
    sys.stdout = sys.stderr = log
    sys.argv = ["beyondcls", *run.arguments]
    print(f"{BEGUN}{run.command}")
    try:
        if n_threads is not None:
            import torch

            torch.set_num_threads(n_threads)
        import_module(COMMAND_LINE).run()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return UNFORESEEN
    finally:
        log.flush()


def last_lines(log: Path) -> list[str]:
    """Of what was done last; none where there is no log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    begun = max((i + 1 for i, line in enumerate(lines) if line.startswith(f"{BEGUN}beyondcls ")), default=0)
    return lines[begun:]


def status_in(lines: Sequence[str]) -> int | None:
    ended = [line.removeprefix(ENDED) for line in lines if line.startswith(ENDED)]
    return int(ended[-1]) if ended and ended[-1].isdecimal() else None


def problem_in(lines: Sequence[str]) -> str:
    """The last message of ours, or else the last lines."""
    messages = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    shown = [line for line in lines[messages[-1] if messages else -EXCERPT :] if not line.startswith(ENDED)]
    return "\n".join(shown).removeprefix("error: ") if messages else " / ".join(shown) or "its log is empty"


@dataclass(frozen=True)
class Watch:
    """Where an engine tells how far it is.

    Attributes:
        progress: called with the number of images, or of runs, done since the last call; negative for those to be done again.
        stops: whether to hand out no more units or runs, and to end when those that were are done.
    """

    progress: Callable[[int], None]
    warn: Callable[[str], None]
    stops: Callable[[], bool]


@contextmanager
def following(
    staged: Callable[[], Path | None], progress: Callable[[int], None], reported: int = 0
) -> Iterator[Callable[[], int]]:
    """Report images of a set's units, as records of them appear where it is staged, if it is; yields a function that gives how
    many were reported.
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


@dataclass
class Agenda:
    """Hands out runs in order; one that is killed is handed out again, before all others.

    A run that fails is not repeated, as it would fail again; others continue.

    Attributes:
        tries: times that a run may be killed before it has failed.
        watch: `progress` is called with the number of runs that have ended.
        say: shows a line, e.g. the results of each run.
        imports: modules that runs import: a server of processes imports them once.
        again: a run that fails for another reason than a mistake of the user's is done again, as one that is killed; and it
            loses little when it is.
    """

    runs: Sequence[Run]
    tries: int
    watch: Watch
    say: Callable[[str], None]
    imports: Sequence[str] = ()
    again: bool = False

    def __post_init__(self) -> None:
        self.n_done = 0  # that have succeeded
        self.problems: dict[str, str] = {}  # of those that have failed, by name
        self._todo, self._handed = list(self.runs), 0
        self._kills, self._losses = Counter[str](), Counter[str]()

    @property
    def is_done(self) -> bool:
        """Whether all runs have ended, or after a stop those that were handed out."""
        return not self._handed and (not self._todo or self.stops())

    def stops(self) -> bool:
        return self.watch.stops()

    def take(self) -> Run | None:
        if not self._todo or self.stops():
            return None
        self._handed += 1
        return self._todo.pop(0)

    def ended(self, run: Run, status: int) -> None:
        """A run has ended with this status: of a process, or of a shell, which adds 128 to the number of a signal."""
        lines = last_lines(run.log)
        if status == 0:
            self._handed -= 1
            self.n_done += 1
            self.watch.progress(1)
            for line in lines:
                if line.startswith((f"{run.name}: ", f"{run.name}/")):  # on what it has written
                    self.say(line)
        elif status == TO_BE_CONTINUED:
            self.left(run)
        elif status < 0 or status > 128 or (status == UNFORESEEN and self.again):
            how = f"failed with: {problem_in(lines)}" if status == UNFORESEEN else _describe_status(status)
            self._kills[run.name] += 1
            if self._kills[run.name] >= self.tries:
                times = "once" if self.tries == 1 else f"{self.tries} times"
                self.failed(run, f"it failed {times}; the last time it {how}")
            else:
                self.left(run)
                self.watch.warn(f"{run.name}: {how}; it is started again, and goes on")
        else:
            self.failed(run, problem_in(lines))

    def failed(self, run: Run, problem: str) -> None:
        self._handed -= 1
        lines = problem.splitlines()
        shown = "\n".join([*lines[:MESSAGE], *["…"] * (len(lines) > MESSAGE)])
        self.problems[run.name] = f"{shown} (log: {run.log})"
        self.watch.progress(1)
        self.watch.warn(f"{run.name}: failed; see {run.log}")

    def left(self, run: Run) -> None:
        """A run is to be done later: it has not begun, or not ended."""
        self._handed -= 1
        self._todo.insert(0, run)

    def lost(self, run: Run) -> None:
        """The machine of a run has gone, which is no failure of the run."""
        self._losses[run.name] += 1
        if self._losses[run.name] >= LOSSES:
            self.failed(run, f"the machine that it was on has gone {LOSSES} times")
        else:
            self.left(run)
            self.watch.warn(f"{run.name}: the machine that it was on has gone; it goes on elsewhere")


def _describe_status(status: int) -> str:
    number = -status if status < 0 else status - 128
    names = {one.value: one.name for one in signal.Signals}
    how = f"was killed ({names[number]})" if number in names else f"ended with status {status}"
    return how + (", perhaps for lack of memory" if number == signal.SIGKILL else "")


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
    cluster: ClassVar[str] = ""  # what it needs besides this machine

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
        """How many tasks an extraction of `n_units` consists of; 0 if this process computes them."""

    def n_places(self, n_runs: int) -> int:
        """How many of so many runs are computed at a time."""
        return self.tasks or n_runs

    @abstractmethod
    def run_all(self, agenda: Agenda) -> None:
        """Have all runs computed, each in a process of its own that ends with this one at the latest."""

    def check_device(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise BeyondClsError(
                f"device is {self.device!r}, which is one device for several workers; give auto, cpu or cuda "
                "(CUDA_VISIBLE_DEVICES says which GPUs are used), or --on here"
            )


def joined_out(staging: Path) -> Path:
    """The folder of a set that is staged here, as `joins` of `Settings` has it."""
    return staging.parent.parent / staging.name[:-33]


def has_all(staging: Path) -> bool:
    """Whether a task that joins has nothing left to do; this machine may lack the folder."""
    if not staging.parent.parent.is_dir():
        raise BeyondClsError(
            f"there is no folder {staging.parent.parent} on {platform.node()}; all machines need the folder of the project, "
            "images and feature sets under the same path as here"
        )
    progress = progress_at(LocalFolder(staging))
    return progress is None or progress.done == progress.n_units


def sharing(
    engine: Engine, out: Path, arguments: Sequence[str], watch: Watch, say: Callable[[str], None]
) -> "Callable[[FeatureWriter, int], None] | None":
    """What has units computed by an engine's processes, as `Settings.engine`; None if this process computes them.

    `arguments`: of the command, without those on engines. Logs are next to `out`.
    """
    if not engine.n_tasks(1):
        return None

    def compute(writer: "FeatureWriter", n_units: int) -> None:
        staging = writer.staging.absolute()
        n = engine.n_tasks(n_units)
        shared = (*arguments, JOIN, str(staging), "--n-tasks", str(n), "--task-id")
        runs = [Run.writing(f"{out}.task{task}", (*shared, str(task))) for task in range(n)]
        # One failure ends all.
        quiet = Watch(lambda _: None, watch.warn, lambda: watch.stops() or bool(agenda.problems))
        agenda = Agenda(runs, engine.tries, quiet, say, IMPORTS, again=True)
        begun = progress_at(LocalFolder(staging))
        with following(lambda: staging, watch.progress, begun.images_done if begun is not None else 0):
            engine.run_all(agenda)
        if agenda.problems and writer.wait_for_others():
            raise BeyondClsError(next(iter(agenda.problems.values())))

    return compute
