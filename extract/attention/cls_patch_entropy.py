"""Entropy of the attention of [cls] to the patches (Fig. 4)."""

import math

from jaxtyping import Float
from torch import Tensor

from extract.attention.attention import Attention
from extract.attention.declared import declares


@declares(
    "Entropy of the attention of [cls] to the patches",
    "entropy, nats",
    highest=lambda n, t: math.log(t),
    uniform=lambda n, t: math.log(t),
    of_cls=True,
)
def cls_patch_entropy(attention: Attention) -> Float[Tensor, "B H"]:
    """Entropy (Eq. 5) of the [cls] row over the T patches, nats, 0…ln T. Uniform attention: ln T.

    Registers count nowhere. Source: Fig. 4; `cls_pos_entropy` in the official code.
    """
    return attention.patch_entropy[..., 0]
