"""Images that a head gets right and is sure of."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def sure_hits(logits: Float[Tensor, "... B K"], labels: Int[Tensor, "B"]) -> Bool[Tensor, "... B"]:
    """Whether the class of each image has more than half of the probability. NaN and +inf have none."""
    probability = torch.softmax(logits, -1)
    return probability.gather(-1, labels.expand(logits.shape[:-1])[..., None])[..., 0] > 0.5
