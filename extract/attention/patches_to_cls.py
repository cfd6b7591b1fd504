"""Attention of the patches to [cls]."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention
from extract.attention.declared import declares


@declares(
    "Attention of patches to [cls]",
    "share of attention, 0–1",
    highest=lambda n, t: 1,
    uniform=lambda n, t: 1 / n,
    of_cls=True,
    of_all_tokens=True,
)
def patches_to_cls(attention: Attention) -> Float[Tensor, "B H"]:
    """Mean over patches i of a[i, cls]; 0…1. Uniform attention: 1 / N.

    What patches give to registers lowers it. Source: `pos_cls_attention` in the official code.
    """
    return (attention.to_cls / attention.z)[..., attention.patches].mean(-1)
