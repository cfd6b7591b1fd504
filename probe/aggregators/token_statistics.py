"""Mean and variance of each channel of the tokens: batch normalisation of tokens, which is the same for all members."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probe.batch_norm import MOMENTUM
from probe.ranks import mean_over_ranks, world_size


class TokenStatistics(nn.Module):
    """As BatchNorm1d(affine=False) over all tokens of all images of a batch, of all processes: (x - mean) / √(variance + eps).

    Members of a grid read the same tokens, so one mean and variance serve all of them, and no token is rewritten: with
    x̂ = scale ∘ x + shift, the scale goes into the queries, and both go into the pooled vector. Training uses the statistics of
    the batch and updates running ones (variance over n - 1), which evaluation uses.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))

    def forward(self, tokens: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
        """Scale and shift that normalise them."""
        mean, variance = self.batch_statistics(tokens) if self.training else (self.mean, self.variance)
        scale = (variance + self.eps).rsqrt()
        return scale, -mean * scale

    def batch_statistics(self, tokens: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
        """Mean and variance (÷ n) of the batch; updates the running ones."""
        variance, mean = torch.var_mean(tokens, (0, 1), correction=0)
        mean_of_all = mean_over_ranks(mean.clone())  # which sums in place
        variance = mean_over_ranks(variance + (mean - mean_of_all).square())
        n = tokens.shape[0] * tokens.shape[1] * world_size()
        with torch.no_grad():
            self.mean.lerp_(mean_of_all, MOMENTUM)
            self.variance.lerp_(variance * (n / max(1, n - 1)), MOMENTUM)
        return mean_of_all, variance
