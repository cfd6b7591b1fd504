"""Weights from attention maps that the store holds: nothing is trained."""

import torch
from jaxtyping import Float
from torch import Tensor

from probe.aggregators.aggregator import Features, Pooled, Weighted, choice, whole_number
from store import BeyondClsError


class StoredAttention(Weighted):
    """Base: a row of the probed block's attention over the patches, of all heads, becomes one weight per patch.

    If no head gives any mass to the patches of an image, its weights are NaN.

    Args:
        of: "own" maps, or "joined" for those of the second feature set (another encoder on the same images, with as many
            patches), which then weight this encoder's tokens.
        head: index of the attention head whose map is used, from 0 on; the mean over heads by default.
        without: index of one that is left out of that mean.

    Raises:
        BeyondClsError: another source of attention, an index below 0, or both `head` and `without`.
    """

    row = "attention/cls"

    def __init__(self, dim: int, of: str = "own", head: int | None = None, without: int | None = None):
        super().__init__(dim)
        if head is not None and without is not None:
            raise BeyondClsError(f"head is {head} and without {without}, expected one of them: a head by itself, or left out")
        self.map = ("joined/" if choice("source of attention", of, ("own", "joined")) == "joined" else "") + self.row
        self.reads = ("patch", self.map)
        self.head = None if head is None else whole_number("head", head, 0)
        self.without = None if without is None else whole_number("without", without, 0)

    def forward(self, features: Features) -> Pooled:
        patch, rows = features["patch"], features[self.map]
        if (n := rows.shape[-1]) != patch.shape[1]:
            raise BeyondClsError(f"{self.map} has {n} patches an image and the tokens {patch.shape[1]}; join sets of one grid")
        return self.weigh(patch, self.over_heads(rows.to(patch.dtype)))

    def over_heads(self, rows: Float[Tensor, "B H T"]) -> Float[Tensor, "B T"]:
        """Weights that sum to 1: the mean over heads, or one head's, renormalised over the patches.

        Raises:
            BeyondClsError: there is no such head, or no other.
        """
        n_heads = rows.shape[1]
        for name, index in (("head", self.head), ("without", self.without)):
            if index is not None and index >= n_heads:
                raise BeyondClsError(f"{name} is {index}, expected 0 to {n_heads - 1}: {self.map} has {n_heads} heads")
        if self.without is not None and n_heads == 1:
            raise BeyondClsError(f"without is {self.without}, but {self.map} has one attention head; nothing would be left")
        others = slice(None) if self.without is None else [head for head in range(n_heads) if head != self.without]
        row = rows[:, others].mean(1) if self.head is None else rows[:, self.head]
        return row / row.sum(-1, keepdim=True)


class ClsAttention(StoredAttention):
    """The [cls] token's attention in the probed block, renormalised over the patches: the mean over heads, or one of them.

    No parameters.

    Source: Tables 4 and 6, "average [cls] token attention" (`attn-mn` in the official code); with of="joined" and DINO's maps
    on MAE's tokens, "average DINO [cls] token attention" (`dino`, which is not renormalised there).

    Args:
        of, head, without: see `StoredAttention`.
    """

    variants = ({}, {"of": "joined", "top_k": 3}, {"head": 3}, {"without": 1})


class CentralAttention(StoredAttention):
    """The central patch's attention in the probed block, renormalised over the patches: the mean over heads, or one of them.

    No parameters.

    The central patch of an even grid is the one right below the middle, as in the stored "attention/centre".

    Source: Tables 4 and 6, "central patch token attention" (`ca1` in the official code, there of the patch above and left of
    the middle, and divided by T).

    Args:
        of, head: see `StoredAttention`.
    """

    row = "attention/centre"
    variants = ({}, {"of": "joined", "top_k": 16, "head": 0})


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
