"""Attention of some images in one block, in the form in which statistics cost least."""

import math
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from extract.attention.layout import TokenLayout


class Attention:
    """Softmax over logits [b, H, N, N]: a[i, j] = e[i, j] / z[i] with e = exp(logit - the row's largest) and z its sums.

    The map `a` itself is never made: each statistic is a ratio of sums of `e`.

    Args:
        logits: q · k / sqrt(d), with whatever is added to it, in units of ln 2 (times log2 e): 2 to a power is computed four
            times faster than e to it. Overwritten.
        layout: which tokens are patches.
        bounded: there may be logits of minus infinity (masked, or the logarithm of 0), which 0 · ln 0 = 0 needs bounded.
        memory: for `e`; new by default.

    Attributes:
        e: [b, H, N, N], 0…1.
        z: [b, H, N], 1…N.
    """

    def __init__(
        self,
        logits: Float[Tensor, "b H N N"],
        layout: TokenLayout,
        bounded: bool = False,
        memory: Float[Tensor, "b H N N"] | None = None,
    ):
        self.layout = layout
        self._logits = logits.sub_(logits.amax(-1, keepdim=True))
        if bounded:
            self._logits.clamp_(min=-1e4)  # 2 to it is 0
        self.e = torch.exp2(self._logits, out=memory)
        self.z = self.e.sum(-1)

    @property
    def patches(self) -> slice:
        """Of the tokens, those that are patches."""
        return slice(self.layout.n_prefix, None)

    @cached_property
    def to_patches(self) -> Float[Tensor, "b H N"]:
        """What each token gives to all patches together, times z: Σ_j e[i, j] over patches j."""
        return self.e[..., self.patches].sum(-1)

    @cached_property
    def to_itself(self) -> Float[Tensor, "b H N"]:
        """What each token gives to itself, times z: e[i, i]."""
        return self.e.diagonal(dim1=-2, dim2=-1)

    @cached_property
    def patch_entropy(self) -> Float[Tensor, "b H N"]:
        """Entropy in nats of each token's row over the patches alone, renormalised to sum to 1 (Eq. 5); 0…ln T.

        With p = e / s over patches, s their sum and l the logits, it is ln s - Σ e · l / s: one logarithm a row. Exact: 0 ln 0
        counts as 0. (The official code adds 1e-6 in the denominator and in the logarithm.) A row without any mass on
        patches has no distribution; it gives NaN, which the store refuses, rather than a number.
        """
        s = self.to_patches
        products = self._logits.mul_(self.e)  # the logits have done their work
        return s.log() - math.log(2) * products[..., self.patches].sum(-1) / s

    def row(self, token: int) -> Float[Tensor, "b H N"]:
        """One row of the attention map; sums to 1."""
        return self.e[:, :, token] / self.z[:, :, token, None]

    def maps(self) -> dict[str, Float[Tensor, "b H T"]]:
        """Rows over the patches, as they are (not renormalised): of [cls], where there is one, and of the central patch."""
        first = self.layout.n_prefix
        rows = {"cls": 0} if self.layout.has_cls else {}
        rows["centre"] = first + centre(self.e.shape[-1] - first)
        return {name: self.row(token)[..., self.patches].contiguous() for name, token in rows.items()}


def centre(n_patches: int) -> int:
    """Index of the central patch of a square grid, row by row; of a grid of even side, the one right below the middle."""
    side = int(n_patches**0.5)
    return (side // 2) * side + side // 2 if side * side == n_patches else n_patches // 2
