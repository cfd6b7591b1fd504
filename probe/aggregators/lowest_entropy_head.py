"""The most selective of the [cls] token's attention maps."""

import torch
from jaxtyping import Float
from torch import Tensor

from probe.aggregators.stored_attention import StoredAttention


class LowestEntropyHead(StoredAttention):
    """The [cls] token's attention in one head of the probed block: the one whose map has the lowest entropy on the image.

    Maps are renormalised over the patches first. Of equal entropies the first head counts; heads without any mass on patches do
    not. No parameters.

    Source: Tables 4 and 6, "lowest-entropy [cls] token attention" (`attn-lcte` in the official code).

    Args:
        of: see `StoredAttention`.
    """

    variants = ({}, {"of": "joined"})

    def __init__(self, dim: int, of: str = "own"):
        super().__init__(dim, of)

    def over_heads(self, rows: Float[Tensor, "B H T"]) -> Float[Tensor, "B T"]:
        mass = rows.sum(-1, keepdim=True)
        maps = rows / mass
        entropy = -torch.xlogy(maps, maps).sum(-1)  # [B, H], nats
        chosen = entropy.masked_fill(mass.squeeze(-1) == 0, torch.inf).argmin(1)
        return maps[torch.arange(len(maps), device=maps.device), chosen]
