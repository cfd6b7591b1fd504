"""The [cls] token beside the average patch token."""

from collections.abc import Callable

import torch

from probe.aggregators.aggregator import Aggregator, Features, Pooled


class ClsAverage(Aggregator):
    """[z_0, mean_t z_t]: W = 2 D. No parameters, and no weights, as half of the vector does not come from the patches.

    Where a feature set has the average itself, that is read, as by `Average`.

    Source: linear evaluation of DINOv2 (arXiv 2304.07193) and of CAPI; `both` in the official code of the paper.
    """

    reads = ("cls", "patch")

    def __init__(self, dim: int):
        super().__init__(dim, 2 * dim)

    def use_vectors(self, has: Callable[[str], bool]) -> None:
        if has("average"):
            self.reads = ("cls", "average")

    def forward(self, features: Features) -> Pooled:
        average = features["average"] if "average" in self.reads else features["patch"].mean(1)
        return Pooled(torch.cat([features["cls"], average], -1), None)
