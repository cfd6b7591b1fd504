"""Linear layers by oneDNN, which is built into torch and not what torch computes them with."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class FastLinear(TorchFunctionMode):
    """While active, linear layers in float32 on a CPU with AVX-512 are computed by oneDNN instead of MKL.

    MKL leaves AVX-512 unused on processors that are not Intel's: there oneDNN takes less than half of the time. Both add up in
    float32; sums differ in the last bits, as they do between any two kinds of processor. Everything else is computed as
    before: other devices and dtypes, and whatever is differentiated.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and _applies(*args, **(kwargs or {})):
            return _linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def is_faster() -> bool:
    """Whether there is anything to gain on this machine."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _applies(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return (
        all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (input, weight))
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and input.numel() > 0
    )


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # What inductor makes of linear layers on CPUs; here without anything behind it.
    return torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
