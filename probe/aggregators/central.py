"""The average of the central patches."""

import math

from probe.aggregators.aggregator import Aggregator, Features, Pooled
from probe.aggregators.options import whole_number
from store import BeyondClsError


class Central(Aggregator):
    """Mean of the k x k patches around the middle of the square grid of side s. No parameters.

    Rows and columns s // 2 - k // 2 to s // 2 - k // 2 + k - 1: exactly centred where s and k are both odd or both even. Of an
    even grid an odd k is centred on the patch right below the middle, the one whose attention is stored as "attention/centre";
    of an odd grid an even k reaches one patch further up and left.

    Source: `cp1` to `cp4` in the official code, which begin at s // 2 - ⌈k / 2⌉: the same for even k, and one patch further up
    and left for odd k (beside the centre of an odd grid).

    Args:
        k: side of the square of patches.
    """

    reads = ("patch",)
    weighted = True
    uses_position = needs_square = True
    variants = ({}, {"k": 2})

    def __init__(self, dim: int, k: int = 1):
        super().__init__(dim)
        self.k = whole_number("k", k)

    def forward(self, features: Features) -> Pooled:
        patch = features["patch"]
        n_patches = patch.shape[1]
        side = math.isqrt(n_patches)
        if side * side != n_patches:
            raise BeyondClsError(f"there are {n_patches} patches, expected a square grid such as 14 x 14; use 'average'")
        if self.k > side:
            raise BeyondClsError(f"k is {self.k}, expected at most {side}, the side of the grid of patches")
        begin = side // 2 - self.k // 2
        square = (slice(None), slice(begin, begin + self.k), slice(begin, begin + self.k))
        weights = patch.new_zeros(len(patch), side, side)
        weights[square] = 1 / self.k**2
        return Pooled(patch.unflatten(1, (side, side))[square].mean((1, 2)), weights.flatten(1))
