"""Where Triton's kernels run in place of PyTorch's operations."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch

SWITCH = "BEYONDCLS_KERNELS"  # "0" in the environment keeps to PyTorch's operations
CAPABILITY = (8, 0)  # of the oldest devices that multiply bfloat16, and for which the kernels are compiled in tests

_is_off = False


def apply_to(tensor: torch.Tensor) -> bool:
    """Whether kernels run on this tensor: on a CUDA device of capability 8.0 or more, where Triton is installed."""
    if tensor.device.type != "cuda" or _is_off or os.environ.get(SWITCH) == "0":
        return False
    return _is_installed() and _is_capable(tensor.device)


@contextmanager
def off() -> Iterator[None]:
    """PyTorch's operations alone, in all threads: what kernels are compared with."""
    global _is_off
    before, _is_off = _is_off, True
    try:
        yield
    finally:
        _is_off = before


@cache
def _is_installed() -> bool:
    return find_spec("triton") is not None


@cache
def _is_capable(device: torch.device) -> bool:
    # Fake tensors say that they are on a device that may not be there.
    return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= CAPABILITY
