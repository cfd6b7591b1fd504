"""Attention of [cls] to itself (Fig. 3)."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention
from extract.attention.declared import declares


@declares(
    "Attention of [cls] to itself",
    "share of attention, 0–1",
    highest=lambda n, t: 1,
    uniform=lambda n, t: 1 / n,
    of_cls=True,
    of_all_tokens=True,
)
def cls_self(attention: Attention) -> Float[Tensor, "B H"]:
    """a[cls, cls], the share of its attention that [cls] spends on itself; 0…1. Uniform attention: 1 / N.

    Registers count among what it could attend to. Source: Fig. 3; `cls_cls_attention` in the official code.
    """
    return attention.to_itself[..., 0] / attention.z[..., 0]
