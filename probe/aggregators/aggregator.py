"""What every aggregator is: tokens to one vector per image."""

from collections.abc import Mapping
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

Features = Mapping[str, Tensor]


class Pooled(NamedTuple):
    """One vector per image, and the weights over patches that made it, where there are any (each row sums to 1)."""

    vector: Float[Tensor, "B D"]
    weights: Float[Tensor, "B T"] | None


class Aggregator(nn.Module):
    """Base of the aggregators.

    A subclass names in `reads` the kinds of features that it needs ("patch" [B, T, D] or "cls" [B, D]), takes `dim` as its
    first argument, and returns a `Pooled`. The features are never changed.
    """

    reads: tuple[str, ...] = ()

    def forward(self, features: Features) -> Pooled:
        """Vector and weights of each image."""
        raise TypeError(f"{type(self).__name__} does not say how it aggregates: define forward(features) -> Pooled")
