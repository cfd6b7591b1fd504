"""The [cls] token beside the average patch token."""

import torch

from probe.aggregators.aggregator import Aggregator, Features, Pooled


class ClsAverage(Aggregator):
    """[z_0, mean_t z_t]: W = 2 D. No parameters, and no weights, as half of the vector does not come from the patches.

    Source: linear evaluation of DINOv2 (arXiv 2304.07193) and of CAPI; `both` in the official code of the paper.
    """

    reads = ("cls", "patch")

    def __init__(self, dim: int):
        super().__init__(dim, 2 * dim)

    def forward(self, features: Features) -> Pooled:
        return Pooled(torch.cat([features["cls"], features["patch"].mean(1)], -1), None)
