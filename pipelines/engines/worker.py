"""A worker of an engine, in whichever process: how it begins, and what it says of its failures."""

import os
import platform
import traceback
from collections.abc import Callable

import torch

from extract.encoders import Encoder
from extract.handing import Job, Worker
from store import BeyondClsError


def begin(job: Job, load: Callable[[str], Encoder], device: str, n_threads: int | None) -> Worker:
    """The worker of a job in this process.

    Args:
        load: the encoder on a device.
        n_threads: of torch on a CPU; None: as the environment says.

    Raises:
        BeyondClsError: this machine lacks the folder of the job, the encoder, or the device.
    """
    for folder in (job.folder, job.staging):
        if not os.path.isdir(folder):
            raise BeyondClsError(
                f"there is no folder {folder} on {platform.node()}; workers need the folder of the project, images and feature "
                "sets under the same path as here"
            )
    os.chdir(job.folder)
    if n_threads is not None:
        torch.set_num_threads(n_threads)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    return Worker(job, load(device))


def problem_of(error: BaseException) -> tuple[str, bool]:
    """What was the matter, and whether it would be the same again."""
    if isinstance(error, BeyondClsError):
        return str(error), True
    where = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error}" + (f" ({where[-1].filename}:{where[-1].lineno})" if where else ""), False
