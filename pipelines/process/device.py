"""The device that a stage computes on."""

import torch

from store import BeyondClsError


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is the GPU if there is one, else the CPU.

    Raises:
        BeyondClsError: no such device, no such GPU, or a kind of device for which the program is not made: it sums in float64,
            which MPS does not have, and has kernels, streams and measurements for CUDA alone.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BeyondClsError(f"unknown device {name!r}; expected auto, cpu, cuda or cuda:1") from error
    if device.type not in ("cpu", "cuda"):
        raise BeyondClsError(f"device is {name!r}, but the program computes on cpu and cuda alone; use --device cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BeyondClsError(f"device is {name!r}, but torch sees no GPU here; use --device cpu")
    if device.index and device.type == "cuda" and device.index >= (n := torch.cuda.device_count()):
        raise BeyondClsError(f"device is {name!r}, but torch sees {n} GPU{'s' * (n > 1)} here; use cuda:0 to cuda:{n - 1}")
    return device
