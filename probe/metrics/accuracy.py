"""Top-k accuracy."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from store import BeyondClsError


def top_k_hits(logits: Float[Tensor, "... B K"], labels: Int[Tensor, "B"], k: int = 1) -> Bool[Tensor, "... B"]:
    """Whether the class of each image is among the k highest logits, for any number of members at once.

    Among equal logits the lower class ranks first, so a head with the same logit for every class is not right about all images.
    -inf means that a class is ruled out: it is never among the highest, however few others there are. Otherwise everything is
    right with k ≥ K. An image with a NaN or +inf among its logits counts as wrong for any k.

    Args:
        labels: 0…K - 1.

    Raises:
        BeyondClsError: k below 1.
    """
    if k < 1:
        raise BeyondClsError(f"top-k accuracy has k = {k}, expected 1 or more")
    label_logit = logits.gather(-1, labels.expand(logits.shape[:-1])[..., None])
    lower = torch.arange(logits.shape[-1], device=logits.device) < labels[:, None]  # [B, K]
    ahead = (logits > label_logit) | ((logits == label_logit) & lower)
    return (ahead.sum(-1) < k) & (label_logit > -torch.inf).squeeze(-1) & (logits < torch.inf).all(-1)


def top_k_accuracy(logits: Float[Tensor, "B K"], labels: Int[Tensor, "B"], k: int = 1) -> float:
    """Percent of images that `top_k_hits` calls right, 0...100."""
    return 100 * top_k_hits(logits, labels, k).double().mean().item()
