"""Optimisers and the learning-rate schedule."""

import math
from collections.abc import Iterable

import torch
from torch.nn import Parameter

from store import BeyondClsError
from store.errors import unknown

OPTIMISERS = ("sgd", "adamw")


def make_optimiser(
    name: str, parameters: Iterable[Parameter], lr: float, weight_decay: float, momentum: float
) -> torch.optim.Optimizer:
    """Raises: BeyondClsError: unknown name, or a learning rate that is not positive."""
    if lr <= 0:
        raise BeyondClsError(f"learning rate is {lr}, expected a positive number")
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)
    raise BeyondClsError(unknown("optimiser", name, OPTIMISERS))


def learning_rate(epoch: float, base: float, epochs: float, warmup: float) -> float:
    """At a fractional `epoch`: linear warm-up over `warmup` epochs, then half a cosine to zero (as MAE's, per iteration)."""
    if epoch < warmup:
        return base * epoch / warmup
    return base * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) / 2
