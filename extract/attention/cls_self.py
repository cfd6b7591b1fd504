"""Attention of [cls] to itself (Fig. 3)."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.layout import TokenLayout


def cls_self(attention: Float[Tensor, "B H N N"], layout: TokenLayout) -> Float[Tensor, "B H"]:
    """a[cls, cls], the share of its attention that [cls] spends on itself; 0...1. Uniform attention: 1 / N.

    Source: Fig. 3; `cls_cls_attention` in the official code.
    """
    return attention[:, :, 0, 0]
