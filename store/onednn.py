"""Products of float32 matrices by oneDNN, which is built into torch but not what torch uses for them."""

import torch
from torch import Tensor


def is_faster() -> bool:
    """Whether there is anything to gain on this machine: a CPU with AVX-512.

    MKL leaves AVX-512 unused on processors that are not Intel's; oneDNN takes less than half of the time there. Both add up in
    float32; sums differ in the last bits, as they do between any two kinds of processor.
    """
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def applies(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether `linear` can compute this: float32 in the memory of a CPU, and nothing that is differentiated."""
    return (
        all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (input, weight))
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and input.numel() > 0
    )


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `torch.nn.functional.linear`, where it `applies`; strides do not matter."""
    # What inductor turns linear layers on CPUs into; nothing is fused after it.
    return torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
