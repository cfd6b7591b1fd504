"""Attention of patches to themselves, relative to what they give to all patches (Fig. 5)."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.layout import TokenLayout


def patch_self(attention: Float[Tensor, "B H N N"], layout: TokenLayout) -> Float[Tensor, "B H"]:
    """Mean over patches i of a[i, i] / sum over patches j of a[i, j]; 0...1. Uniform attention: 1 / T.

    Source: Fig. 5; `pos_self_attention_adj_for_cls` in the official code.
    """
    patches = attention[:, :, layout.n_prefix :, layout.n_prefix :]
    return (patches.diagonal(dim1=-2, dim2=-1) / patches.sum(-1)).mean(-1)
