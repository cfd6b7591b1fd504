"""Aggregators that weight tokens and sum them."""

import torch
from jaxtyping import Float
from torch import Tensor

from probe.aggregators.aggregator import Aggregator, Pooled
from store import BeyondClsError


class Weighted(Aggregator):
    """Base of aggregators whose vector is made of Σ_t w_t x_t. Subclasses let `weigh` sum, so that all of them can be cut.

    Attributes:
        top_k: K, the number of weights of each query that count; all by default (`make_aggregator` sets it).
    """

    weighted = True
    top_k: int | None = None

    def weigh(self, tokens: Float[Tensor, "B T D"], weights: Float[Tensor, "B T"]) -> Pooled:
        """The weighted sum of each image's tokens."""
        weights = self.cut(weights)
        # A batched matrix product: the elementwise product of the sum would write B x T x D numbers.
        return Pooled(torch.bmm(weights[:, None], tokens).squeeze(1), weights)

    def cut(self, weights: Float[Tensor, "*rows T"]) -> Float[Tensor, "*rows T"]:
        """Of each row, the K largest weights, made to sum to 1, and 0 elsewhere; as it is without `top_k`.

        Of equal weights, those of the first tokens are kept.

        Raises:
            BeyondClsError: there are fewer than K.
        """
        if self.top_k is None:
            return weights
        if self.top_k > weights.shape[-1]:
            raise BeyondClsError(f"top_k is {self.top_k}, expected at most {weights.shape[-1]}, the number of tokens")
        ordered, where = weights.sort(stable=True, dim=-1, descending=True)
        kept = ordered[..., : self.top_k]
        return torch.zeros_like(weights).scatter(-1, where[..., : self.top_k], kept / kept.sum(-1, keepdim=True))
