"""Batch normalisation without parameters, of many members at once, over the images of all processes."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from probe.ranks import mean_over_ranks, world_size

MOMENTUM = 0.1  # of running means and variances, as torch's default


def batch_norm(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x̂ = (x - mean) / √(variance + eps) of vectors [..., B, W]; and mean and variance (÷ B), [..., 1, W].

    As `torch.nn.BatchNorm1d` of each member by itself. The backward pass reads and writes half of what autograd's would.
    Mean and variance carry no gradient.
    """
    return _BatchNorm.apply(x, eps)


class _BatchNorm(torch.autograd.Function):
    """The gradient g becomes (g - mean(g) - x̂ · mean(g · x̂)) / √(variance + eps)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        normalised = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        mean, variance = (x.new_empty(*x.shape[:-2], 1, x.shape[-1]) for _ in range(2))
        for index in _members(x):
            mean[index] = mean_over_ranks(x[index].mean(-2, keepdim=True))
            centred = torch.sub(x[index], mean[index], out=normalised[index])
            variance[index] = mean_over_ranks(centred.square().mean(-2, keepdim=True))
            centred.mul_((variance[index] + eps).rsqrt_())
        ctx.save_for_backward(normalised, (variance + eps).rsqrt_())
        ctx.mark_non_differentiable(mean, variance)
        return normalised, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        normalised, scale = ctx.saved_tensors
        out = torch.empty_like(normalised)
        for index in _members(gradient):
            g, x = gradient[index], normalised[index]
            along = mean_over_ranks((g * x).mean(-2, keepdim=True))
            mean = mean_over_ranks(g.mean(-2, keepdim=True))
            torch.addcmul(g, x, along, value=-1, out=out[index]).sub_(mean).mul_(scale[index])
        return out, None


def _members(x: Tensor) -> list[Any]:
    """Indices of members that are computed at once: one on a CPU, to fit its caches; all elsewhere, or with several ranks."""
    return list(range(len(x))) if x.ndim == 3 and x.device.type == "cpu" and world_size() == 1 else [...]
