"""The command is run by a job array of Slurm, whose tasks share the set."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipelines.engines.engine import Engine, Watch
from pipelines.engines.journalled import Journalled
from pipelines.engines.slurm_script import ENDED, script_of
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.encoders import Encoder

LOGS = ".slurm"  # beside feature sets
SECONDS = 2.0  # between two looks at the journal
EXCERPT = 5  # lines of a log in which there is no message of ours


@dataclass(frozen=True)
class Slurm(Engine):
    """A job array of `tasks`, which is submitted from here; the command waits until it has ended.

    A task that is killed, or whose node fails, is queued again, up to `tries` times; one whose time ends is so as often as it
    takes, and goes on after the last shard that it has written.
    """

    options: ClassVar[tuple[str, ...]] = ("tasks", "tries", "sbatch")
    cluster: ClassVar[str] = "Slurm"

    def workers(self, load: "Callable[[str], Encoder]", watch: Watch) -> None:
        raise AssertionError("its tasks compute here")

    def script(self, arguments: Sequence[str], out: Path) -> str:
        """The script that sbatch takes.

        Args:
            arguments: of the command, `beyondcls`.
            out: folder of the feature set.
        """
        return script_of(arguments, out.name, logs_of(out), self.tasks or 1, self.tries, self.sbatch or "")

    def run(self, arguments: Sequence[str], out: Path, staged: Callable[[], Path | None], say: Callable[[str], None]) -> None:
        """Submit the job array, wait until it has ended, and show how far it is.

        Args:
            arguments, out: as for `script`.
            staged: where the set is staged now, if it is.
            say: prints a line.

        Raises:
            BeyondClsError: no sbatch, a job that it refuses, or a task that failed.
        """
        if shutil.which("sbatch") is None:
            raise BeyondClsError(
                "--on slurm calls sbatch, which was not found on this machine; give the command on a login node of the "
                "cluster, or write the script with --script FILE and submit it there, or give --on processes"
            )
        logs = logs_of(out)
        logs.mkdir(parents=True, exist_ok=True)
        with subprocess.Popen(
            ["sbatch", "--parsable", "--wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write(self.script(arguments, out))
            process.stdin.close()
            job = process.stdout.readline().strip().partition(";")[0]
            if not job:
                raise BeyondClsError(f"sbatch refuses the job: {process.stderr.read().strip()}; correct --sbatch, or --tasks")
            say(f"{out}: job {job}, {self.tasks or 1} tasks; logs in {logs}/{job}_*.log")
            try:
                _watch(process, out.name, staged)
            except BaseException:
                subprocess.run(["scancel", job], check=False)
                process.kill()
                raise
        if process.returncode:
            raise BeyondClsError(failure(job, logs))


def logs_of(out: Path) -> Path:
    """The folder of the logs of a set's jobs."""
    return (out.parent / LOGS / out.name).absolute()


def _watch(process: "subprocess.Popen[str]", name: str, staged: Callable[[], Path | None]) -> None:
    """Wait until a process has ended, with a bar as soon as there is a journal to see."""
    from pipelines.process.progress import progress_bar

    while process.poll() is None:
        journalled = Journalled.read(staged())
        if journalled is None:
            time.sleep(SECONDS)
            continue
        n_images, shown = journalled.n_images, 0
        with progress_bar(name, n_images, "images") as progress:
            while process.poll() is None:
                if journalled is not None:
                    progress(journalled.n_done - shown)
                    shown = journalled.n_done
                time.sleep(SECONDS)
                journalled = Journalled.read(staged())
            if process.returncode == 0:  # the journal is gone
                progress(n_images - shown)


def failure(job: str, logs: Path) -> str:
    """What to say of a job that failed, from the logs of its tasks."""
    problems = []
    for log in sorted(logs.glob(f"{job}_*.log")):
        lines = log.read_text(errors="replace").splitlines()
        ended = [line for line in lines if line.startswith(ENDED)]
        if ended and ended[-1] == f"{ENDED}0":
            continue
        messages = [line for line in lines if line.startswith("error: ")]
        text = _from(lines, messages[-1]) if messages else " / ".join(lines[-EXCERPT:]) or "its log is empty"
        task = re.sub(r".*_", "", log.stem)
        problems.append(f"task {task}: {text} (log: {log})")
    if not problems:
        return f"job {job} failed before its tasks began; see `scontrol show job {job}`"
    return f"job {job} failed. " + "; ".join(problems[:3])


def _from(lines: Sequence[str], message: str) -> str:
    """A message of several lines, as it is at the end of a log."""
    start = len(lines) - 1 - list(reversed(lines)).index(message)
    return "\n".join(line for line in lines[start:] if not line.startswith(ENDED)).removeprefix("error: ")
