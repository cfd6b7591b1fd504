"""The device that a stage computes on, and memory that is kept when it is freed."""

import ctypes
import platform

import torch

from store import BeyondClsError

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)
LIMIT = 2**31 - 1


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is the GPU if there is one, else the CPU. Freed memory is kept from then on.

    Raises:
        BeyondClsError: no such device, no such GPU, or a kind of device for which the program is not made: it sums in float64,
            which MPS does not have, and has kernels, streams and measurements for CUDA alone.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError as error:
        raise BeyondClsError(f"unknown device {name!r}; expected auto, cpu, cuda or cuda:1") from error
    if device.type not in ("cpu", "cuda"):
        raise BeyondClsError(f"device is {name!r}, but the program computes on cpu and cuda alone; use --device cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BeyondClsError(f"device is {name!r}, but torch sees no GPU here; use --device cpu")
    if device.index and device.type == "cuda" and device.index >= (n := torch.cuda.device_count()):
        raise BeyondClsError(f"device is {name!r}, but torch sees {n} GPU{'s' * (n > 1)} here; use cuda:0 to cuda:{n - 1}")
    keep_freed_memory()
    return device


def keep_freed_memory() -> bool:
    """Let glibc keep memory that is freed, for the whole process; false where there is no glibc.

    On a CPU every layer of a ViT, and every step of a grid of heads, allocates tens of MB. By default glibc takes them from the
    system and gives them back each time, and the system has to clear every page: a third more images per second without that.
    Whoever decodes images, for a GPU as well, allocates a MB or more for each.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc, values = ctypes.CDLL(None), {MMAP_THRESHOLD: LIMIT, TRIM_THRESHOLD: LIMIT, TOP_PAD: 64 << 20}
    return all(libc.mallopt(name, value) for name, value in values.items())
