"""Runs by a job array of Slurm, with a task for each; how they end is read from their logs."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from pipelines.engines.agenda import Agenda
from pipelines.engines.log import last_lines, problem_in, status_in
from pipelines.engines.run import Run
from pipelines.engines.slurm_job import Job, check_sbatch, max_array_size, submitted
from pipelines.engines.slurm_script import script_of_runs
from pipelines.process.stopping import TO_BE_CONTINUED

LOGS = ".slurm"  # in the folder that has all of what runs write
SECONDS = 2.0  # between two looks at logs
REMEDY = "correct --sbatch"


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
