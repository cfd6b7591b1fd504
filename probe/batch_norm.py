"""Batch normalisation without parameters, of many members at once, over the images of all processes."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from probe.ranks import mean_over_ranks


def batch_norm(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x̂ = (x - mean) / √(variance + eps) of vectors [..., B, W]; and mean and variance (÷ B), [..., 1, W].

    As `torch.nn.BatchNorm1d` of each member by itself. Its own backward pass reads and writes half of what autograd's would.
    Mean and variance carry no gradient.
    """
    return _BatchNorm.apply(x, eps)


class _BatchNorm(torch.autograd.Function):
    """Of a gradient g comes (g - mean(g) - x̂ · mean(g · x̂)) / √(variance + eps)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        mean = mean_over_ranks(x.mean(-2, keepdim=True))
        centred = x - mean
        variance = mean_over_ranks(centred.square().mean(-2, keepdim=True))
        scale = (variance + eps).rsqrt_()
        normalised = centred.mul_(scale)
        ctx.save_for_backward(normalised, scale)
        ctx.mark_non_differentiable(mean, variance)
        return normalised, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        normalised, scale = ctx.saved_tensors
        along = mean_over_ranks((gradient * normalised).mean(-2, keepdim=True))
        mean = mean_over_ranks(gradient.mean(-2, keepdim=True))
        return torch.addcmul(gradient, normalised, along, value=-1).sub_(mean).mul_(scale), None
