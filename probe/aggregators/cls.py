"""The [cls] token itself."""

from probe.aggregators.aggregator import Aggregator, Features, Pooled


class Cls(Aggregator):
    """z_{L,0}, what linear probing usually reads. No parameters, no weights."""

    reads = ("cls",)

    def __init__(self, dim: int):
        super().__init__(dim)

    def forward(self, features: Features) -> Pooled:
        return Pooled(features["cls"], None)
