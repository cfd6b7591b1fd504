"""Layers of M members at once, and what learned queries save: no key and no value is computed for a token.

A key's product with a query is the token's with another query, q · (W_k x) = (W_kᵀ q) · x, and values are linear in the tokens,
Σ_t a_t W_v x_t = W_v Σ_t a_t x_t. Biases of keys, and shifts of layer normalisation, add the same to all logits and cancel.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from store import BeyondClsError


def linear(
    x: Float[Tensor, "M B C"], weight: Float[Tensor, "M E C"], bias: Float[Tensor, "M E"] | None = None
) -> Float[Tensor, "M B E"]:
    """Each member's x Wᵀ + b."""
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


def head_width(dim: int, heads: int) -> int:
    """Channels of one attention head.

    Raises:
        BeyondClsError: heads that do not divide the width.
    """
    if dim % heads:
        near = max(h for h in range(1, min(heads, dim) + 1) if dim % h == 0)
        raise BeyondClsError(f"heads is {heads}, expected a divisor of the width of the tokens, {dim}; {near} is one")
    return dim // heads


def through_keys(query: Float[Tensor, "*M C"], key: Float[Tensor, "M C D"], heads: int = 1) -> Float[Tensor, "*M H D"]:
    """Queries for the tokens themselves: W_{k,h}ᵀ q_h / √(C / H) of each attention head h.

    Args:
        query: [M, C], or [M, B, C] where it depends on the image.
        key: weight of the keys' projection.
    """
    split = query.unflatten(-1, (heads, -1))
    by_head = key.unflatten(1, (heads, -1))
    path = "mhc,mhcd->mhd" if query.ndim == 2 else "mbhc,mhcd->mbhd"
    return torch.einsum(path, split, by_head) * split.shape[-1] ** -0.5


def through_values(pooled: Float[Tensor, "M B H D"], value: Float[Tensor, "M C D"]) -> Float[Tensor, "M B C"]:
    """The heads' values side by side: head h's C / H rows of W_v, applied to what head h pooled."""
    return torch.einsum("mbhd,mhcd->mbhc", pooled, value.unflatten(1, (pooled.shape[2], -1))).flatten(2)
