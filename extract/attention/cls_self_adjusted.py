"""Attention of [cls] to itself, relative to what it gives to the patches."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention
from extract.attention.declared import declares, infinity


@declares(
    "Attention of [cls] to itself, relative to the patches",
    "ratio, without bound",
    highest=infinity,
    uniform=lambda n, t: 1 / t,
    of_cls=True,
)
def cls_self_adjusted(attention: Attention) -> Float[Tensor, "B H"]:
    """a[cls, cls] / sum over patches j of a[cls, j]; 0…infinity. Uniform attention: 1 / T.

    Registers count nowhere. Source: `cls_cls_attention_adj_for_cls` in the official code (which adds 1e-6 below).
    """
    return attention.to_itself[..., 0] / attention.to_patches[..., 0]
