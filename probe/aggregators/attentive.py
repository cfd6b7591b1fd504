"""Aggregators that attend to tokens, many members at once: the tokens are read once for all members, branches and heads."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm

from probe.aggregators.aggregator import Features, Pooled
from probe.aggregators.weighted import Weighted
from probe.pooling import softmax_pool


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
