"""Aggregators that attend to tokens, many members at once: the tokens are read once for all members, branches and heads.

Learned queries save layers: no key and no value is computed for a token. A key's product with a query is the token's with
another query, q · (W_k x) = (W_kᵀ q) · x, and values are linear in the tokens, Σ_t a_t W_v x_t = W_v Σ_t a_t x_t. Biases of
keys, and shifts of layer normalisation, add the same to all logits and cancel.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm

from probe.aggregators.aggregator import Features, Pooled, Weighted
from probe.pooling import softmax_pool
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


class Attentive(Weighted):
    """Base of aggregators that define `pool_members` themselves; a single one is the case M = 1.

    M: members. H: queries of each, one per branch or attention head.
    """

    random_start = True

    def forward(self, features: Features) -> Pooled:
        vector, weights = self.pool_members({name: value[None] for name, value in self.named_parameters()}, features)
        return Pooled(vector[0], None if weights is None else weights[0])

    def attend(
        self,
        tokens: Float[Tensor, "B T D"],
        queries: Float[Tensor, "M H D"] | Float[Tensor, "M B H D"],
        bias: Float[Tensor, "M H #T"] | None = None,
    ) -> tuple[Float[Tensor, "M B H D"], Float[Tensor, "M B H T"]]:
        """Weighted sums of the tokens and weights softmax_t(q · x_t + bias), all queries in one pass over the tokens."""
        n_members, n_queries = queries.shape[0], queries.shape[-2]
        shared = queries.ndim == 3
        flat = queries.flatten(0, 1) if shared else queries.movedim(0, 1).flatten(1, 2)  # [Q, D] or [B, Q, D], Q = M · H
        vectors, weights = softmax_pool(tokens, flat, None if bias is None else bias.flatten(0, 1))
        if self.top_k is not None:
            weights = self.cut(weights)
            vectors = torch.bmm(weights, tokens)
        by_member = (n_members, n_queries)
        return vectors.unflatten(1, by_member).movedim(1, 0), weights.unflatten(1, by_member).movedim(1, 0)

    def attend_normalised(
        self,
        tokens: Float[Tensor, "B T D"],
        queries: Float[Tensor, "M H D"] | Float[Tensor, "M B H D"],
        scale: Float[Tensor, "M D"],
        shift: Float[Tensor, "M D"],
        eps: float,
    ) -> tuple[Float[Tensor, "M B H D"], Float[Tensor, "M B H T"]]:
        """`attend` to layer-normalised tokens γ ∘ x̂ + β: normalised once for all members, γ goes into the query.

        q · (γ ∘ x̂ + β) is (q ∘ γ) · x̂ and what cancels in the softmax; as weights sum to 1, the pooled vector is γ ∘ Σ w x̂ + β.
        """
        by_query = scale.unflatten(0, (-1, *[1] * (queries.ndim - 2)))
        pooled, weights = self.attend(layer_norm(tokens, tokens.shape[-1:], eps=eps), queries * by_query)
        return torch.addcmul(shift[:, None, None], pooled, scale[:, None, None]), weights
