"""A job of Slurm that was submitted from here, for as long as somebody waits for it."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipelines.engines.agenda import Agenda
from pipelines.engines.log import last_lines, problem_in, status_in
from pipelines.engines.run import Run
from pipelines.engines.slurm_script import script_of_runs
from pipelines.process.stopping import TO_BE_CONTINUED
from store import BeyondClsError

ANSWER_S = 10  # seconds to wait for Slurm's controller
LOGS = ".slurm"  # folder of logs, beside feature sets or in the folder that has all of what runs write
SECONDS = 2.0  # between two looks at logs
REMEDY = "correct --sbatch"
MAX_ARRAY_SIZE = 1000  # tasks: numbers below Slurm's default MaxArraySize of 1001


@dataclass(frozen=True)
class Job:
    """A job, and the process of sbatch that ends with it."""

    number: str
    waiting: "subprocess.Popen[str]"

    @property
    def has_ended(self) -> bool:
        return self.waiting.poll() is not None

    def cancel(self, *options: str) -> None:
        subprocess.run(["scancel", *options, self.number], check=False)


def check_sbatch() -> None:
    """Refuse a machine from which no job can be submitted.

    Raises:
        BeyondClsError: there is no sbatch.
    """
    if shutil.which("sbatch") is None:
        raise BeyondClsError(
            "--on slurm calls sbatch, which was not found on this machine; give the command on a login node of the "
            "cluster, or write the script with --script FILE and submit it there, or give --on processes"
        )


def configuration() -> dict[str, str]:
    """Slurm's configuration by name; empty where there is no Slurm, or its controller does not answer."""
    with suppress(OSError, subprocess.TimeoutExpired):
        shown = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=ANSWER_S, check=False)
        if shown.returncode == 0:
            lines = (line.partition("=") for line in shown.stdout.splitlines())
            return {name.strip(): value.strip() for name, is_there, value in lines if is_there}
    return {}


def max_array_size() -> int:
    """How many tasks an array may have; Slurm's own default where it does not say."""
    stated = configuration().get("MaxArraySize", "")
    return max(1, int(stated) - 1) if stated.isdecimal() else MAX_ARRAY_SIZE


@contextmanager
def submitted(script: str, remedy: str) -> Iterator[Job]:
    """Submit a script; the job is cancelled if waiting for it ends with an error.

    Args:
        remedy: what to do where sbatch refuses it.

    Raises:
        BeyondClsError: sbatch refuses the job.
    """
    with subprocess.Popen(
        ["sbatch", "--parsable", "--wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with suppress(BrokenPipeError):  # it refuses without reading, and says why
            process.stdin.write(script)
            process.stdin.close()
        number = process.stdout.readline().strip().partition(";")[0]
        if not number:
            raise BeyondClsError(f"sbatch refuses the job: {process.stderr.read().strip()}; {remedy}")
        job = Job(number, process)
        try:
            yield job
        except BaseException:
            job.cancel()
            process.kill()
            raise


class RunArray:
    """A job array with a task for each run; with as many as Slurm takes, where that is fewer.

    Args:
        at_a_time: how many tasks may run at a time; None: as many as Slurm lets.
        tries, sbatch, setup: as for `script_of_runs`.
    """

    def __init__(self, runs: Sequence[Run], at_a_time: int | None, tries: int, sbatch: str, setup: Sequence[str] = ()):
        self.runs = list(runs)
        self.logs = Path(os.path.commonpath([run.log.parent.parent for run in runs])) / LOGS
        self.n_tasks = min(len(runs), max_array_size())
        self.script = script_of_runs(runs, self.n_tasks, self.logs, at_a_time, tries, sbatch, setup)

    def make_folders(self) -> None:
        """Make the folders of logs, as Slurm makes none."""
        for folder in {self.logs, *(run.log.parent for run in self.runs)}:
            folder.mkdir(parents=True, exist_ok=True)

    def run(self, agenda: Agenda) -> None:
        """Submit the job array, and wait until it has ended.

        Raises:
            BeyondClsError: there is no sbatch, or it refuses the job.
        """
        check_sbatch()
        self.make_folders()
        waiting = dict(enumerate(iter(agenda.take, None)))
        with submitted(self.script, REMEDY) as job:
            tasks = f"{self.n_tasks} task{'s' * (self.n_tasks > 1)}"
            tasks += f" for {len(self.runs)} runs" if len(self.runs) > self.n_tasks else ""
            agenda.say(f"job {job.number}, {tasks}; what Slurm says of them is in {self.logs}")
            self._watch(job, agenda, waiting)
        for number, run in waiting.items():
            self._conclude(job, agenda, number, run)

    def _watch(self, job: Job, agenda: Agenda, waiting: dict[int, Run]) -> None:
        """Notice runs that end, until the job has ended."""
        sizes: dict[int, int] = {}
        is_told = has_ended = False
        while not has_ended:
            has_ended = job.has_ended  # and one more look
            for number, run in list(waiting.items()):
                size = run.log.stat().st_size if run.log.exists() else 0
                if size == sizes.get(number, 0):
                    continue
                sizes[number] = size
                status = status_in(last_lines(run.log))
                if status is not None and status != TO_BE_CONTINUED and status <= 128:  # else it is queued again
                    agenda.ended(waiting.pop(number), status)
            if agenda.stops() and not is_told:
                job.cancel("--state=PENDING")
                is_told = True
            if not has_ended:
                time.sleep(SECONDS)

    def _conclude(self, job: Job, agenda: Agenda, number: int, run: Run) -> None:
        """What is known of a run that had not ended when the job had."""
        lines, of_slurm = last_lines(run.log), last_lines(self.logs / f"{job.number}_{number % self.n_tasks}.log")
        if job.waiting.returncode == 0:  # its log is seen later here
            agenda.ended(run, 0)
        elif agenda.stops() and not lines:
            agenda.left(run)
        elif (status := status_in(lines)) is not None:
            agenda.failed(run, f"it ended with status {status} too often: {problem_in(of_slurm or lines)}")
        elif lines:
            agenda.failed(run, f"Slurm has ended it: {problem_in(of_slurm or lines)}")
        else:
            agenda.failed(run, f"it did not begin; see `scontrol show job {job.number}_{number % self.n_tasks}`")
