"""The learning-rate schedule."""

import math


def learning_rate(epoch: float, base: float, epochs: float, warmup: float) -> float:
    """At a fractional `epoch`: linear warm-up over `warmup` epochs, then half a cosine to zero (as MAE's, per iteration)."""
    if epoch < warmup:
        return base * epoch / warmup
    return base * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) / 2
