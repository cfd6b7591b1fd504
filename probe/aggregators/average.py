"""The average patch token."""

from probe.aggregators.aggregator import Aggregator, Features, Pooled


class Average(Aggregator):
    """Mean over the T patch tokens (Sec. 3.1); every weight is 1 / T. No parameters."""

    reads = ("patch",)
    weighted = True

    def __init__(self, dim: int):
        super().__init__(dim)

    def forward(self, features: Features) -> Pooled:
        patch = features["patch"]
        return Pooled(patch.mean(1), patch.new_full(patch.shape[:2], 1 / patch.shape[1]))
