"""Entropy of the attention of [cls] to the patches (Fig. 4)."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.entropy import row_entropy
from extract.attention.layout import TokenLayout


def cls_patch_entropy(attention: Float[Tensor, "B H N N"], layout: TokenLayout) -> Float[Tensor, "B H"]:
    """Entropy (Eq. 5) of the [cls] row over the T patches, nats, 0...ln T. Uniform attention: ln T.

    Source: Fig. 4; `cls_pos_entropy` in the official code.
    """
    return row_entropy(attention[:, :, 0, layout.n_prefix :])
