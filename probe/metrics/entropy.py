"""Entropy of the weights that an aggregator gives to the patches."""

import torch
from jaxtyping import Float
from torch import Tensor


def weight_entropy(weights: Float[Tensor, "... T"]) -> Float[Tensor, "..."]:
    """Shannon entropy of each image's weights, nats; 0 (one patch) ... ln T (the plain average). Tables 3 and 4."""
    return torch.special.entr(weights.double()).sum(-1)
