"""The largest value of each channel."""

from probe.aggregators.aggregator import Aggregator, Features, Pooled


class Max(Aggregator):
    """max_t x_{t,d} over the T patch tokens, of each channel d by itself. No parameters, and no weights."""

    reads = ("patch",)

    def __init__(self, dim: int):
        super().__init__(dim)

    def forward(self, features: Features) -> Pooled:
        return Pooled(features["patch"].amax(1), None)
