"""Entropy of the attention of patches to patches (Fig. 6)."""

import math

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention
from extract.attention.declared import declares


@declares(
    "Entropy of the attention of patches to patches",
    "entropy, nats",
    highest=lambda n, t: math.log(t),
    uniform=lambda n, t: math.log(t),
)
def patch_patch_entropy(attention: Attention) -> Float[Tensor, "B H"]:
    """Mean over patches of the entropy (Eq. 5) of their row over the T patches, nats, 0…ln T. Uniform attention: ln T.

    Registers count nowhere. Source: Fig. 6; `pos_pos_entropy` in the official code.
    """
    return attention.patch_entropy[..., attention.patches].mean(-1)
