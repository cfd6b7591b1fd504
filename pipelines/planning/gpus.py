"""GPUs as their makers describe them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SHARE = 0.4  # of a GPU's peak, for estimates: what is reached is for the user to measure


@dataclass(frozen=True)
class Gpu:
    """A GPU and its link to the host.

    Attributes:
        title: with its article, as in a sentence.
        flops_per_s: operations in bf16, dense, without structured sparsity.
        memory_per_s: bytes that its memory (HBM or GDDR) moves.
        link_per_s: bytes to it over PCIe, 16 lanes; as many in the other direction at the same time.
    """

    title: str
    flops_per_s: float
    memory_per_s: float
    link_per_s: float

    def __str__(self) -> str:
        return f"{self.title}, {self.flops_per_s / 1e12:.0f} TFLOP/s in bf16"


PCIE4, PCIE5 = 31.5e9, 63e9
# Of the makers' data sheets: A100 80GB SXM, H100 SXM, H200 SXM, B200 (HGX), L4, L40S, GeForce RTX 4090 (Ada whitepaper,
# with float32 sums).
GPUS = {
    "a100": Gpu("an A100", 312e12, 2.039e12, PCIE4),
    "h100": Gpu("an H100", 989e12, 3.35e12, PCIE5),
    "h200": Gpu("an H200", 989e12, 4.8e12, PCIE5),
    "b200": Gpu("a B200", 2250e12, 8e12, PCIE5),
    "l4": Gpu("an L4", 121e12, 0.3e12, PCIE4),
    "l40s": Gpu("an L40S", 362e12, 0.864e12, PCIE4),
    "rtx4090": Gpu("an RTX 4090", 165e12, 1.008e12, PCIE4),
}
DEFAULT = "a100"


def gpu_of(device: "torch.device") -> str:
    """The name in GPUS of a CUDA device, by what it calls itself; DEFAULT of others."""
    if device.type != "cuda":
        return DEFAULT
    import torch

    called = torch.cuda.get_device_name(device).lower().replace(" ", "")
    return max((name for name in GPUS if name in called), key=len, default=DEFAULT)  # an L40S is no L4
