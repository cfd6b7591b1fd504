"""Aggregators that weight tokens and sum them."""

import torch
from jaxtyping import Float
from torch import Tensor

from probe.aggregators.aggregator import Aggregator, Pooled
from store import BeyondClsError


class Weighted(Aggregator):
    """Base of aggregators whose vector is made of Σ_t w_t x_t. Subclasses sum with `weigh`, so that `top_k` works for all.

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
        """The K largest weights of each row, made to sum to 1, and 0 elsewhere; unchanged without `top_k`.

        Among equal weights, those of the first tokens are kept.

        Raises:
            BeyondClsError: there are fewer than K tokens.
        """
        if self.top_k is None:
            return weights
        if self.top_k > weights.shape[-1]:
            raise BeyondClsError(f"top_k is {self.top_k}, expected at most {weights.shape[-1]}, the number of tokens")
        ordered, indices = weights.sort(stable=True, dim=-1, descending=True)
        largest = ordered[..., : self.top_k]
        return torch.zeros_like(weights).scatter(-1, indices[..., : self.top_k], largest / largest.sum(-1, keepdim=True))
