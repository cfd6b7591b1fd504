"""Modules whose sizes a description states, made only where the parameters in the file beside it can be theirs."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

M = TypeVar("M", bound=nn.Module)
NAME_NBYTES = 50  # at least, of a tensor in the header of a .safetensors file
REPLACED = 4  # times the file: some parameters are replaced while a module is made
BUFFERS_NBYTES = 64 << 20  # at most, that are computed and are not in the file, as codes of positions


def made(build: Callable[[], M], parameters: Path, *sizes: int) -> M:
    """What `build` makes, whose parameters and buffers are not much larger than the file.

    They are counted as they are registered, on a device without memory, before it is made; loading the parameters compares
    exactly.

    Args:
        build: makes the module, twice alike; of any size that its description states.
        parameters: the .safetensors file.
        sizes: widths and numbers of classes in the description.

    Raises:
        ValueError: the file is too small for them.
    """
    nbytes = parameters.stat().st_size
    left = {nn.Parameter: REPLACED * nbytes, Tensor: nbytes + BUFFERS_NBYTES}

    def count(module: nn.Module, name: str, values: Tensor | None) -> None:
        if values is None or not values.is_meta:  # of a module that another thread makes
            return
        left[type(values)] -= values.nbytes + NAME_NBYTES
        if left[type(values)] < 0:
            raise ValueError(f"a larger model is described than {parameters.name} has parameters for")

    if max(sizes) > nbytes:
        raise ValueError(f"a width of {max(sizes)} is described, and {parameters.name} has {nbytes} bytes")
    registered = hooks.register_module_parameter_registration_hook(count), hooks.register_module_buffer_registration_hook(count)
    try:
        with torch.device("meta"):
            build()
    finally:
        for one in registered:
            one.remove()
    return build()
