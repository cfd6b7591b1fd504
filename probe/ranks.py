"""Several processes that train the same heads, each from its own share of the images (torchrun)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from store import BeyondClsError

_JOINED = count()
T = TypeVar("T")


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
