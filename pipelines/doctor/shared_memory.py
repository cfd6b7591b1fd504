"""The size of /dev/shm, which is 64 MB in containers by default."""

import shutil
from pathlib import Path

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine

FOLDER = Path("/dev/shm")
FOR_NCCL = 1e9  # what NVIDIA's containers are started with, for several GPUs


def check(machine: Machine) -> Finding | None:
    """Only nccl needs it, between several GPUs of a machine under torchrun: images and tokens are read by threads."""
    import torch

    from pipelines.store.table import size

    if not FOLDER.is_dir():
        return None  # a system without it
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    total = shutil.disk_usage(FOLDER).total
    if n_gpus > 1 and total < FOR_NCCL:
        observed = f"{size(total)}; torchrun with several of the {n_gpus} GPUs may need more (nccl)"
        remedy = "start the container with --shm-size=1g or --ipc=host; if that cannot be, export NCCL_SHM_DISABLE=1 (slower)"
        return Finding("shared memory", "note", observed, remedy)
    why = "enough for nccl between the GPUs" if n_gpus > 1 else "does not matter here: data are read by threads, not processes"
    return Finding("shared memory", "ok", f"{size(total)}; {why}")
