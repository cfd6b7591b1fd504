"""Attention of patches to themselves, relative to what they give to all patches (Fig. 5)."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention
from extract.attention.declared import declares


@declares(
    "Attention of patches to themselves",
    "share of attention to patches, 0–1",
    highest=lambda n, t: 1,
    uniform=lambda n, t: 1 / t,
)
def patch_self(attention: Attention) -> Float[Tensor, "B H"]:
    """Mean over patches i of a[i, i] / sum over patches j of a[i, j]; 0…1. Uniform attention: 1 / T.

    Registers count nowhere. Source: Fig. 5; `pos_self_attention_adj_for_cls` in the official code.
    """
    return (attention.to_itself / attention.to_patches)[..., attention.patches].mean(-1)
