"""The command is run by a job array of Slurm, whose tasks share the set."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipelines.engines.agenda import Agenda
from pipelines.engines.engine import Engine
from pipelines.engines.journalled import Journalled
from pipelines.engines.log import last_lines, problem_in, status_in
from pipelines.engines.run import Run
from pipelines.engines.slurm_job import Job, check_sbatch, submitted
from pipelines.engines.slurm_runs import RunArray
from pipelines.engines.slurm_script import script_of
from pipelines.engines.watch import Watch
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.encoders import Encoder

LOGS = ".slurm"  # beside feature sets
SECONDS = 2.0  # between two looks at the journal


@dataclass(frozen=True)
class Slurm(Engine):
    """A job array of `tasks`, or of a task for each run, which is submitted from here; the command waits until it has ended.

    A task that is killed, or whose node fails, is queued again, up to `tries` times; one whose time ends is so as often as it
    takes, and goes on after the last shard that it has written, or epoch.
    """

    options: ClassVar[tuple[str, ...]] = ("tasks", "tries", "sbatch", "setup")
    cluster: ClassVar[str] = "Slurm"

    def workers(self, load: "Callable[[str], Encoder]", watch: Watch) -> None:
        raise AssertionError("its tasks compute here")

    def script(self, arguments: Sequence[str], out: Path) -> str:
        """The script that sbatch takes.

        Args:
            arguments: of the command, `beyondcls`.
            out: folder of the feature set.
        """
        return script_of(arguments, out.name, logs_of(out), self.tasks or 1, self.tries, self.sbatch or "", self.setup or ())

    def run(self, arguments: Sequence[str], out: Path, staged: Callable[[], Path | None], say: Callable[[str], None]) -> None:
        """Submit the job array, wait until it has ended, and show how far it is.

        Args:
            arguments, out: as for `script`.
            staged: where the set is staged now, if it is.
            say: prints a line.

        Raises:
            BeyondClsError: no sbatch, a job that it refuses, or a task that failed.
        """
        check_sbatch()
        logs, n = logs_of(out), self.tasks or 1
        logs.mkdir(parents=True, exist_ok=True)
        with submitted(self.script(arguments, out), "correct --sbatch, or --tasks") as job:
            tasks = f"{n} tasks" if n > 1 else "1 task (--tasks gives more)"
            say(f"{out}: job {job.number}, {tasks}; logs in {logs}/{job.number}_*.log")
            _watch(job, out.name, staged)
        if job.waiting.returncode:
            raise BeyondClsError(failure(job.number, logs))

    def array(self, runs: Sequence[Run]) -> RunArray:
        """The job array with a task for each run."""
        return RunArray(runs, self.tasks, self.tries, self.sbatch or "", self.setup or ())

    def run_all(self, agenda: Agenda) -> None:
        self.array(agenda.runs).run(agenda)


def logs_of(out: Path) -> Path:
    """The folder of the logs of a set's jobs."""
    return (out.parent / LOGS / out.name).absolute()


def _watch(job: Job, name: str, staged: Callable[[], Path | None]) -> None:
    """Wait until a job has ended, with a bar as soon as there is a journal to see."""
    from pipelines.process.progress import progress_bar

    while not job.has_ended:
        journalled = Journalled.read(staged())
        if journalled is None:
            time.sleep(SECONDS)
            continue
        n_images, shown = journalled.n_images, 0
        with progress_bar(name, n_images, "images") as progress:
            while not job.has_ended:
                if journalled is not None:
                    progress(journalled.n_done - shown)
                    shown = journalled.n_done
                time.sleep(SECONDS)
                journalled = Journalled.read(staged())
            if job.waiting.returncode == 0:  # the journal is gone
                progress(n_images - shown)


def failure(job: str, logs: Path) -> str:
    """What to say of a job that failed, from the logs of its tasks."""
    problems = []
    for log in sorted(logs.glob(f"{job}_*.log")):
        lines = last_lines(log)
        if status_in(lines) != 0:
            task = re.sub(r".*_", "", log.stem)
            problems.append(f"task {task}: {problem_in(lines)} (log: {log})")
    if not problems:
        return f"job {job} failed before its tasks began; see `scontrol show job {job}`"
    return f"job {job} failed. " + "; ".join(problems[:3])
