"""Selection by the length of the tokens."""

import torch
from jaxtyping import Float
from torch import Tensor

from probe.aggregators.aggregator import Features, Pooled
from probe.aggregators.options import flag
from probe.aggregators.weighted import Weighted


class Norm(Weighted):
    """w_t ∝ ‖x_t‖, the tokens' L2 norms; with `top_k` those of the K longest tokens alone. No parameters.

    With largest=False w_t ∝ 1 / ‖x_t‖, and `top_k` keeps the K shortest; tokens of length 0, if there are any, then share all
    of the weight. Where all are of length 0, weights are equal. A final LayerNorm leaves little or no difference between norms:
    do not apply it here.

    Ours, not the paper's. Long tokens are what ViTs trained for long use as registers, on patches that say little of the image
    (Darcet et al. 2024, arXiv 2309.16588); which end is worth selecting is for the data to say.

    Args:
        largest: whether long tokens count most.
    """

    reads = ("patch",)
    variants = ({}, {"top_k": 3}, {"largest": False, "top_k": 5})

    def __init__(self, dim: int, largest: bool = True):
        super().__init__(dim)
        self.largest = flag("largest", largest)

    def forward(self, features: Features) -> Pooled:
        patch = features["patch"]
        return self.weigh(patch, self.shares(patch.norm(dim=-1)))

    def shares(self, norms: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Weights that sum to 1. Ratios to the extreme one neither overflow nor, where that one is 0, divide by 0."""
        extreme = norms.amax(-1, keepdim=True) if self.largest else norms.amin(-1, keepdim=True)
        ratios = torch.where(norms == extreme, 1.0, norms / extreme if self.largest else extreme / norms)
        return ratios / ratios.sum(-1, keepdim=True)
