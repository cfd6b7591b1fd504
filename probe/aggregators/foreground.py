"""Aggregators that split an image's patches into foreground and background."""

import math
from abc import abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probe.aggregators.aggregator import Aggregator, Features, Pooled
from store import BeyondClsError


class Foreground(Aggregator):
    """Base: the mean over the patches that a subclass says are `chosen`, from the image's own tokens alone. No parameters.

    Objects are rarely cut by the border of the image: of two parts, the one at the border is the background. Weights are all
    equal, so there is nothing to select by (`top_k`).
    """

    reads = ("patch",)
    weighted = True
    uses_position = needs_square = True

    def forward(self, features: Features) -> Pooled:
        patch = features["patch"]
        chosen = self.chosen(patch.detach()).to(patch.dtype)
        weights = chosen / chosen.sum(-1, keepdim=True)
        return Pooled(torch.bmm(weights[:, None], patch).squeeze(1), weights)

    @abstractmethod
    def chosen(self, tokens: Float[Tensor, "B T D"]) -> Bool[Tensor, "B T"]:
        """The foreground, at least one patch of each image."""


def border(n_patches: int, device: torch.device) -> Bool[Tensor, "T"]:
    """Which patches are in the first or last row or column of the square grid.

    Raises:
        BeyondClsError: the grid is not square, or has no inside.
    """
    side = math.isqrt(n_patches)
    if side * side != n_patches or side < 3:
        raise BeyondClsError(
            f"there are {n_patches} patches, expected a square grid of 3 x 3 or more, with a border and an inside; "
            "use 'average' or 'norm'"
        )
    edge = torch.ones(side, side, dtype=torch.bool, device=device)
    edge[1:-1, 1:-1] = False
    return edge.flatten()
