"""Attention of [cls] to the patches."""

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention
from extract.attention.declared import declares


@declares(
    "Attention of [cls] to a patch, mean over patches",
    "share of attention, 0–1 / T",
    highest=lambda n, t: 1 / t,
    uniform=lambda n, t: 1 / n,
    of_cls=True,
    of_all_tokens=True,
)
def cls_to_patches(attention: Attention) -> Float[Tensor, "B H"]:
    """Mean over patches j of a[cls, j]; 0…1 / T. Uniform attention: 1 / N.

    What [cls] gives to registers lowers it. Source: `cls_pos_attention` in the official code.
    """
    n_patches = attention.z.shape[-1] - attention.layout.n_prefix
    return attention.to_patches[..., 0] / attention.z[..., 0] / n_patches
