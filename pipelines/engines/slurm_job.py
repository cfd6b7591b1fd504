"""A job of Slurm that was submitted from here, for as long as somebody waits for it."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from store import BeyondClsError

SECONDS = 10  # to wait for Slurm's controller
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
        shown = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=SECONDS, check=False)
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
