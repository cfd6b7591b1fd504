"""Processes that train the same heads, each from its share of the images (torchrun), and normalisation over all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from store import BeyondClsError

_JOINED = count()
T = TypeVar("T")
MOMENTUM = 0.1  # of running means and variances, as torch's default


@contextmanager
def ranks(device: torch.device) -> Iterator[tuple[int, int]]:
    """Rank and number of processes: those of torchrun, whose group is joined (nccl on GPUs, gloo else); 0 and 1 without it.

    On GPUs each process takes the one of its number, which a device "cuda" then means.

    Raises:
        BeyondClsError: the other processes cannot be reached, or there are more processes than GPUs.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0, 1
        return
    if dist.is_initialized():
        yield dist.get_rank(), dist.get_world_size()
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda" and device.index is None:
        this_rank, n_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if this_rank >= n_gpus:
            raise BeyondClsError(f"there are {n_gpus} GPUs here, expected one for each process; start at most {n_gpus} of them")
        torch.cuda.set_device(this_rank)
    try:
        store, this_rank, n_ranks = _meeting_place()
        # Under its own prefix: an earlier group left addresses there at which nobody listens any more.
        store = dist.PrefixStore(f"probe{next(_JOINED)}", store)
        dist.init_process_group(backend, store=store, rank=this_rank, world_size=n_ranks)
    except (RuntimeError, ValueError) as error:
        raise BeyondClsError(
            f"cannot join the other processes ({backend}: {error}); start all of them with torchrun, or unset WORLD_SIZE"
        ) from error
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


@cache
def _meeting_place() -> tuple[dist.Store, int, int]:
    """The store where the processes meet, kept for the life of this one; rank and number of processes."""
    return next(dist.rendezvous("env://"))


def rank() -> int:
    """The index of this process among those that train together."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def mean_over_ranks(values: Tensor) -> Tensor:
    """Mean over all images, from the mean over those of each process; all processes have the same number of images."""
    if world_size() == 1:
        return values
    values = values.contiguous()
    dist.all_reduce(values)
    return values / world_size()


def sum_over_ranks(*tensors: Tensor) -> None:
    """Replace tensors by their sums over all processes."""
    if world_size() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def broadcast_from_first(value: T) -> T:
    """The value of the first process, in all processes."""
    if world_size() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


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
        for index in _member_groups(x):
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
        for index in _member_groups(gradient):
            g, x = gradient[index], normalised[index]
            along = mean_over_ranks((g * x).mean(-2, keepdim=True))
            mean = mean_over_ranks(g.mean(-2, keepdim=True))
            torch.addcmul(g, x, along, value=-1, out=out[index]).sub_(mean).mul_(scale[index])
        return out, None


def _member_groups(x: Tensor) -> list[Any]:
    """Indices of members that are computed at once: one on a CPU, to fit its caches; all elsewhere, or with several ranks."""
    return list(range(len(x))) if x.ndim == 3 and x.device.type == "cpu" and world_size() == 1 else [...]
