"""Where Triton's kernels run in place of PyTorch's operations."""

import os
import warnings
from functools import cache
from importlib.util import find_spec

import torch
from torch.torch_version import TorchVersion

from store.errors import BeyondClsWarning

SWITCH = "BEYONDCLS_KERNELS"  # "0" in the environment keeps to PyTorch's operations
CAPABILITY = (8, 0)  # of the oldest devices that multiply bfloat16, and for which the kernels are compiled in tests
TRITON = "3.6"  # the oldest that compiles all of them; PyTorch 2.10 comes with it


def apply_to(tensor: torch.Tensor) -> bool:
    """Whether kernels run on this tensor: on a CUDA device of capability 8.0 or more, where Triton is installed.

    A process warns once if Triton is too old (BeyondClsWarning).
    """
    if tensor.device.type != "cuda" or os.environ.get(SWITCH) == "0":
        return False
    return _is_capable(tensor.device) and _can_be_compiled()


@cache
def _can_be_compiled() -> bool:
    if find_spec("triton") is None:
        return False
    import triton

    if TorchVersion(triton.__version__) >= TRITON:
        return True
    warnings.warn(
        f"Triton {triton.__version__} cannot compile the kernels of beyondcls, expected {TRITON} or later: PyTorch operations "
        f"run on the GPU instead, which is slower; install PyTorch 2.10 or later, or set {SWITCH}=0",
        BeyondClsWarning,
        stacklevel=3,
    )
    return False


@cache
def _is_capable(device: torch.device) -> bool:
    # Fake tensors say that they are on a device that may not be there.
    return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= CAPABILITY
