"""Entropy of the attention of patches to patches (Fig. 6)."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.entropy import row_entropy
from extract.attention.layout import TokenLayout


def patch_patch_entropy(attention: Float[Tensor, "B H N N"], layout: TokenLayout) -> Float[Tensor, "B H"]:
    """Mean over patches of the entropy (Eq. 5) of their row over the T patches, nats, 0...ln T. Uniform attention: ln T.

    Source: Fig. 6; `pos_pos_entropy` in the official code.
    """
    return row_entropy(attention[:, :, layout.n_prefix :, layout.n_prefix :]).mean(-1)
