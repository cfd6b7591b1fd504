"""Checks of this machine: what is installed, GPU, memory, Slurm."""

import json
import os
import platform
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import psutil

from pipelines.doctor.machine import Finding, Machine
from pipelines.engines.slurm import configuration
from store.errors import BeyondClsError, first_line
from store.plugins import GROUPS, declared, misplaced

OURS = "beyondcls"
# What needs an extra, as a pattern for params.yaml as JSON, and the store's root.
NEEDED_BY = {
    "extract": r'"encoders": \{"',
    "probe": r'"(cls_|own_)?heads": \{"',
    "parquet": r"parquet|\.arrow",
    "s3": "s3://",
    "open-clip": "open_clip:",
    "transformers": "transformers:",
}
GPU, SHARED_MEMORY = Path("/dev/nvidia0"), Path("/dev/shm")
LITTLE_MEMORY, FOR_NCCL = 2e9, 1e9  # torch with a ViT-B and one batch; what NVIDIA's containers give to /dev/shm


def versions(machine: Machine) -> Iterator[Finding]:
    """Python and packages, as setup.cfg requires them; parts that are not installed are a note where params.yaml needs them."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    python, names = platform.python_version(), ("torch", "timm", "zarr", "numpy")
    found = f"Python {python}" + "".join(f", {name} {_version(name)}" for name in names if _version(name))
    yield Finding("versions", "ok", found)
    expected, asked = SpecifierSet(metadata.metadata(OURS)["Requires-Python"] or ""), ""
    if not expected.contains(python, prereleases=True):
        yield Finding("versions", "problem", f"Python is {python}, expected {expected}", "make an environment with that")
    with suppress(BeyondClsError):  # other checks report it
        asked = json.dumps([machine.params, machine.places.root], default=str)
    for need in map(Requirement, metadata.requires(OURS) or ()):
        extra, installed = re.search(r"extra == ['\"]([\w-]+)", str(need.marker)), _version(need.name)
        part, pattern = (f"{OURS}[{extra[1]}]", NEEDED_BY.get(extra[1].replace("_", "-"), "$^")) if extra else (OURS, "")
        if installed is None and re.search(pattern, asked):
            found = f"{need.name} is missing, which {part} needs"
            yield Finding("versions", "note" if extra else "problem", found, f"pip install '{part}', where its work is done")
        elif installed is not None and not need.specifier.contains(installed, prereleases=True):
            found = f"{need.name} is {installed}, {part} needs {need.specifier}"
            yield Finding("versions", "problem", found, f"pip install '{need.name}{need.specifier}'")


def _version(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def plugins(machine: Machine) -> Iterator[Finding]:
    """Entries of registries that packages declare; one that nothing reads, or that cannot be imported, is a problem."""
    yield from (Finding("plugins", "problem", fault, "correct or uninstall the package") for fault in misplaced())
    for plugin in (plugin for group in GROUPS for plugin in declared(group)):
        plugin.load(lambda entry: None)
        yield Finding("plugins", "ok", str(plugin))


def gpu(machine: Machine) -> Iterator[Finding]:
    """Each GPU, once it has added two numbers. One that is here but that torch cannot use is a problem; none at all a note."""
    import torch

    from pipelines.store.table import size

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    build, hidden = torch.version.cuda or getattr(torch.version, "hip", None), os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    about = f"torch {torch.__version__}, built {f'for CUDA {build}' if build else 'without CUDA'}"
    if n_gpus == 0 and GPU.exists() and hidden not in ("", "-1"):
        why = f": {first_line(warned[0].message)}" if warned else ""
        remedy = f"update the driver to one for CUDA {build}, or install a torch that was built for it"
        yield Finding("gpu", "problem", f"there is a GPU, which {about}, cannot use{why}", remedy)
    elif n_gpus == 0:
        remedy = "everything works without one; extraction takes far longer (`beyondcls plan` says how long here)"
        yield Finding("gpu", "note", f"none (CUDA_VISIBLE_DEVICES: {hidden}); {about}", remedy)
    for i in range(n_gpus):
        found = f"cuda:{i}, {torch.cuda.get_device_name(i)}"
        try:
            free, total = torch.cuda.mem_get_info(i)
            torch.ones(1, device=f"cuda:{i}").add(1).item()  # some builds have no code for a GPU
        except RuntimeError as error:
            remedy = "install a torch that was built for this GPU, or choose one by CUDA_VISIBLE_DEVICES that nobody uses"
            yield Finding("gpu", "problem", f"{found}, does not compute: {first_line(error)}", remedy)
            continue
        # bfloat16 is emulated, slowly, before the generation of capability 8.
        has_bf16 = not torch.version.cuda or torch.cuda.get_device_capability(i)[0] >= 8
        found += f", {size(free)} of {size(total)} free, {'bf16' if has_bf16 else 'no bf16: use --amp fp16'} ({about})"
        yield Finding("gpu", "ok", found)


def memory(machine: Machine) -> Iterator[Finding]:
    """Free memory within the limit of control groups; and /dev/shm, which nccl needs between GPUs, small in containers."""
    import torch

    from pipelines.store.table import size
    from store.loading.placement import MEMORY_SHARE, free_memory

    free, is_parallel = free_memory(torch.device("cpu")), torch.cuda.is_available() and torch.cuda.device_count() > 1
    found = f"{size(free)} free of {size(psutil.virtual_memory().total)}, of which tokens may take {size(MEMORY_SHARE * free)}"
    remedy = "ask for more, end other programs, or give a smaller --batch-size and fewer --workers"
    yield Finding("memory", "note" if free < LITTLE_MEMORY else "ok", found, remedy)
    if is_parallel and SHARED_MEMORY.is_dir() and (nbytes := shutil.disk_usage(SHARED_MEMORY).total) < FOR_NCCL:
        remedy = "start the container with --shm-size=1g or --ipc=host; if that cannot be, export NCCL_SHM_DISABLE=1 (slower)"
        found = f"{SHARED_MEMORY} has {size(nbytes)}, expected {size(FOR_NCCL)} for several GPUs under torchrun (nccl)"
        yield Finding("memory", "note", found, remedy)


def slurm(machine: Machine) -> Iterator[Finding]:
    """Where there is Slurm: `--on slurm` counts on tasks that are ended early being queued again."""
    if shutil.which("scontrol") is None:
        return
    mode, requeue = (configuration().get(name, "not known") for name in ("PreemptMode", "JobRequeue"))
    is_fit = mode != "not known" and "CANCEL" not in mode.split(",") and requeue != "0"
    remedy = "`sinfo` says whether Slurm answers; where tasks are preempted and not queued again, give the command again"
    yield Finding("slurm", "ok" if is_fit else "note", f"PreemptMode is {mode}, JobRequeue {requeue}", remedy)
