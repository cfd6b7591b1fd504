"""Where a stage computes."""

import torch

from store import BeyondClsError


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one.

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
        raise BeyondClsError(f"device {name!r} was asked for, but torch sees no GPU here; use --device cpu")
    return device
