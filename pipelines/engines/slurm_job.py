"""A job of Slurm that was submitted from here, for as long as somebody waits for it."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from store import BeyondClsError


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
