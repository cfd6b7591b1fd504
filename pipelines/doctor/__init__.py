"""`beyondcls doctor`: checks by name, in the order in which they are shown.

To add one: a file here with `check(machine)`, which gives a Finding of the check's name, or None where its question does not
arise; and its line in CHECKS.
"""

from collections.abc import Callable

from pipelines.doctor import (
    conditional_writes,
    cpu,
    disk,
    disk_cache,
    dvc,
    dvc_cache,
    dvc_remote,
    extras,
    file_system,
    gpu,
    hub,
    memory,
    packages,
    parameters,
    plugins,
    shared_memory,
    slurm,
    store_root,
    versions,
    weights,
)
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine

CHECKS: dict[str, Callable[[Machine], Finding | None]] = {
    "versions": versions.check,
    "packages": packages.check,
    "extras": extras.check,
    "plugins": plugins.check,
    "gpu": gpu.check,
    "cpu": cpu.check,
    "memory": memory.check,
    "shared memory": shared_memory.check,
    "disk": disk.check,
    "file system": file_system.check,
    "slurm": slurm.check,
    "dvc": dvc.check,
    "dvc cache": dvc_cache.check,
    "dvc remote": dvc_remote.check,
    "params.yaml": parameters.check,
    "store.root": store_root.check,
    "store.root writes": conditional_writes.check,
    "store.cache": disk_cache.check,
    "hub": hub.check,
    "official weights": weights.check,
}
NETWORK = ("store.root", "store.root writes", "hub", "official weights")  # asked first, all at once
