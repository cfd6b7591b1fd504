"""How much memory is free, here or on a GPU."""

import os
from pathlib import Path

import psutil
import torch

ROOT = Path("/")
# In errors of the CPU's allocator, of CUDA's driver, of MPS and XPU, and of cuBLAS and cuDNN.
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed", "out_of_memory", "bad_alloc")


def free_memory(device: torch.device) -> int:
    """Bytes that this process may still use on a device.

    On a GPU with what PyTorch holds there and does not use; of this machine's memory what limits of containers and schedulers
    leave, in equal parts where torchrun has started several processes here.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    limits = [_below_limit(*files) for files in _limits()]
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    return min([psutil.virtual_memory().available, *(free for free in limits if free is not None)]) // ranks_here


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of this machine or of a device, does not suffice: PyTorch has no one type for that."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in OUT_OF_MEMORY)


def _limits() -> list[tuple[Path, Path, Path]]:
    """Files with limit, use and statistics of the control groups (versions 1 and 2) that this process is in."""
    mount, process_groups = ROOT / "sys/fs/cgroup", ROOT / "proc/self/cgroup"
    files = []
    for line in process_groups.read_text().splitlines() if process_groups.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = mount, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = mount / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # In a container the group's own folder is what is mounted.
        folder = next((f for f in (base / path.lstrip("/"), base) if (f / names[0]).is_file()), None)
        if folder is not None:
            files.append((folder / names[0], folder / names[1], folder / "memory.stat"))
    return files


def _below_limit(limit: Path, use: Path, statistics: Path) -> int | None:
    """Bytes below a limit; None without one. Cached files count as free: they are evicted."""
    try:
        allowed = int(limit.read_text())
        cached = sum(
            int(value)
            for name, value in (line.split() for line in statistics.read_text().splitlines())
            if name in ("inactive_file", "active_file")
        )
        return max(0, allowed - int(use.read_text()) + cached)
    except (OSError, ValueError):  # "max", or not ours to read
        return None
