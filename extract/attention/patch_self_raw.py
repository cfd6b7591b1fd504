"""Attention of patches to themselves."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention
from extract.attention.declared import declares


@declares(
    "Attention of patches to themselves, of all tokens",
    "share of attention, 0–1",
    highest=lambda n, t: 1,
    uniform=lambda n, t: 1 / n,
    of_all_tokens=True,
)
def patch_self_raw(attention: Attention) -> Float[Tensor, "B H"]:
    """Mean over patches i of a[i, i]; 0…1. Uniform attention: 1 / N.

    What patches give to [cls] and registers lowers it. Source: `pos_self_attention` in the official code.
    """
    return (attention.to_itself / attention.z)[..., attention.patches].mean(-1)
