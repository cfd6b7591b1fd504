"""The device that a stage computes on."""

import torch

from store import BeyondClsError


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is the GPU if there is one, else the CPU.

    Raises:
        BeyondClsError: no such device, or no GPU.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BeyondClsError(f"unknown device {name!r}; expected auto, cpu, cuda or cuda:1") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BeyondClsError(f"device is {name!r}, but torch sees no GPU here; use --device cpu")
    return device
