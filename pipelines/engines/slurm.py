"""The command is run by a job array of Slurm, whose tasks share the set."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipelines.engines.agenda import Agenda
from pipelines.engines.engine import Engine
from pipelines.engines.log import last_lines, problem_in, status_in
from pipelines.engines.run import Run
from pipelines.engines.slurm_job import LOGS, Job, RunArray, check_sbatch, submitted
from pipelines.engines.slurm_script import script_of
from store import BeyondClsError
from store.format.unfinished import Progress, progress_at
from store.places import LocalFolder

SECONDS = 2.0  # between two looks at how far it is


@dataclass(frozen=True)
class Slurm(Engine):
    """A job array of `tasks`, or of a task for each run, which is submitted from here; the command waits until it has ended.

    A task that is killed, or whose node fails, is queued again, up to `tries` times; one whose time ends is so as often as it
    takes, and goes on after the last shard that it has written, or epoch.
    """

    options: ClassVar[tuple[str, ...]] = ("tasks", "tries", "sbatch", "setup")
    cluster: ClassVar[str] = "Slurm"

    def n_tasks(self, n_units: int) -> int:
        return self.tasks or 1

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
    """Wait until a job has ended, with a bar as soon as the set is begun."""
    from pipelines.process.progress import progress_bar

    while not job.has_ended:
        begun = _begun(staged())
        if begun is None:
            time.sleep(SECONDS)
            continue
        shown = 0
        with progress_bar(name, begun.n_images, "images") as progress:
            while not job.has_ended:
                if (now := _begun(staged())) is not None:
                    progress(now.images_done - shown)
                    shown = now.images_done
                time.sleep(SECONDS)
            if job.waiting.returncode == 0:  # the set is published
                progress(begun.n_images - shown)


def _begun(staging: Path | None) -> Progress | None:
    return None if staging is None else progress_at(LocalFolder(staging))


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
