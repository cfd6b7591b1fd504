"""Where features are kept while heads train: on the device, in memory, or on disk; how much memory is free; and memory of the
host that is pinned, from which GPUs fetch by themselves.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from store import kernels
from store.errors import StoreError, unknown
from store.format.array import ArrayReader

Placement = Literal["auto", "device", "memory", "stream"]
PLACEMENTS = ("auto", "device", "memory", "stream")
DEVICE_SHARE, MEMORY_SHARE = 0.7, 0.5  # of what is free; the rest is for heads, gradients and everyone else
ROOT = Path("/")
WORD = 8  # bytes of pinned memory that a kernel fetches at once, of a multiple of which it makes use
BLOCK = 2048  # words of a program
# In errors of the CPU's allocator, of CUDA's driver, of MPS and XPU, and of cuBLAS and cuDNN.
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed", "out_of_memory", "bad_alloc")


def choose_placement(
    arrays: Mapping[str, Sequence[ArrayReader]], n_rows: int, device: torch.device, placement: Placement
) -> tuple[dict[str, str], str]:
    """Where each array, with all its views, goes ("device", "memory" or "stream"), and the reason as text.

    "auto": all on the device if they fit there, else all in memory; else those that are small compared with the largest (an
    eighth of it) in memory, and the others are streamed. On the CPU, "device" and "memory" are the same.
    """
    if placement not in PLACEMENTS:
        raise StoreError(unknown("placement", placement, PLACEMENTS))
    nbytes = {n: sum(array.nbytes // max(1, array.shape[0]) for array in views) * n_rows for n, views in arrays.items()}
    total = sum(nbytes.values())
    on_gpu = device.type != "cpu"
    if placement != "auto":
        chosen = "memory" if placement == "device" and not on_gpu else placement
        return dict.fromkeys(arrays, chosen), f"{chosen}, as asked for ({_format_size(total)})"
    if on_gpu and total <= DEVICE_SHARE * (free := free_memory(device)):
        return dict.fromkeys(arrays, "device"), f"device: {_format_size(total)} of {_format_size(free)} free there"
    free = free_memory(torch.device("cpu"))
    if total <= MEMORY_SHARE * free:
        return dict.fromkeys(arrays, "memory"), f"memory: {_format_size(total)} of {_format_size(free)} free"
    largest = max(nbytes.values())
    small = {name for name, size in nbytes.items() if size <= largest / 8 and size <= MEMORY_SHARE * free / 2}
    places = {name: "memory" if name in small else "stream" for name in arrays}
    in_memory = f", {', '.join(sorted(small))} in memory" if small else ""
    return places, f"stream: {_format_size(total)}, too much for {_format_size(free)} of free memory{in_memory}"


def _format_size(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"


def free_memory(device: torch.device) -> int:
    """Bytes that this process may still use on a device.

    On a GPU with what PyTorch holds there and does not use; of this machine's memory what limits of containers and schedulers
    leave, in equal parts where torchrun has started several processes here.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    limits = [_bytes_below_limit(*files) for files in _limit_files()]
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    return min([psutil.virtual_memory().available, *(free for free in limits if free is not None)]) // ranks_here


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of this machine or of a device, does not suffice: PyTorch has no one type for that."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in OUT_OF_MEMORY)


def _limit_files() -> list[tuple[Path, Path, Path]]:
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


def _bytes_below_limit(limit: Path, use: Path, statistics: Path) -> int | None:
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


def pin(memory: Tensor) -> bool:
    """Have GPUs fetch from this memory, until it is unpinned; false where the system does not let it be pinned."""
    return int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) == 0


def unpin(addresses: Iterable[int]) -> None:
    for address in addresses:
        torch.cuda.cudart().cudaHostUnregister(address)


@dataclass(frozen=True)
class PinnedRows:
    """Rows of pinned memory, [B, nbytes] in the end, which a device fetches from their places: nothing is copied on the way."""

    memory: UInt8[Tensor, "n nbytes"]
    rows: Int64[Tensor, "B"]

    def to(self, device: torch.device, non_blocking: bool = False) -> UInt8[Tensor, "B nbytes"]:
        fetched = torch.empty(len(self.rows), self.memory.shape[1], dtype=torch.uint8, device=device)
        if not len(self.rows):
            return fetched
        if kernels.apply_to(fetched) and self.memory.shape[1] % WORD == 0:
            fetch_by_kernel(self.memory, self.rows.to(device, non_blocking=non_blocking), fetched)
        else:
            rows = [self.memory[row] for row in self.rows.tolist()]
            torch._foreach_copy_(list(fetched.unbind()), rows, non_blocking)
        return fetched


def fetch_by_kernel(memory: UInt8[Tensor, "n nbytes"], rows: Int64[Tensor, "B"], out: UInt8[Tensor, "B nbytes"]) -> None:
    from triton import cdiv

    from store.loading.fetch_kernel import fetch

    words = out.view(torch.int64)
    with torch.cuda.device_of(out):  # Triton launches on the current device
        fetch[len(rows), cdiv(words.shape[1], BLOCK)](memory.view(torch.int64), rows, words, words.shape[1], BLOCK)
