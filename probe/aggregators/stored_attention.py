"""Weights from attention maps that the store holds: nothing is trained."""

from jaxtyping import Float
from torch import Tensor

from probe.aggregators.aggregator import Features, Pooled
from probe.aggregators.options import choice, whole_number
from probe.aggregators.weighted import Weighted
from store import BeyondClsError


class StoredAttention(Weighted):
    """Base: a row of the probed block's attention over the patches, of all heads, becomes one weight per patch.

    If no head gives any mass to the patches of an image, its weights are NaN.

    Args:
        of: "own" maps, or "joined" for those of the second feature set (another encoder on the same images, with as many
            patches), which then weight this encoder's tokens.
        head: index of the attention head whose map is used, from 0 on; the mean over heads by default.
    """

    row = "attention/cls"

    def __init__(self, dim: int, of: str = "own", head: int | None = None):
        super().__init__(dim)
        self.map = ("joined/" if choice("source of attention", of, ("own", "joined")) == "joined" else "") + self.row
        self.reads = ("patch", self.map)
        self.head = None if head is None else whole_number("head", head, 0)

    def forward(self, features: Features) -> Pooled:
        patch, rows = features["patch"], features[self.map]
        if rows.shape[-1] != patch.shape[1]:
            raise BeyondClsError(
                f"{self.map} has {rows.shape[-1]} patches an image and the tokens {patch.shape[1]}; "
                "join feature sets of one resolution and patch size"
            )
        return self.weigh(patch, self.over_heads(rows.to(patch.dtype)))

    def over_heads(self, rows: Float[Tensor, "B H T"]) -> Float[Tensor, "B T"]:
        """Weights that sum to 1: the mean over heads, or one head's, renormalised over the patches.

        Raises:
            BeyondClsError: there is no such head.
        """
        if self.head is not None and self.head >= rows.shape[1]:
            raise BeyondClsError(
                f"head is {self.head}, expected 0 to {rows.shape[1] - 1}: {self.map} has {rows.shape[1]} attention heads"
            )
        row = rows.mean(1) if self.head is None else rows[:, self.head]
        return row / row.sum(-1, keepdim=True)
