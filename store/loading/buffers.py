"""Memory that is used again: touching fresh memory costs more than filling it."""

import weakref

import numpy as np
import torch
from torch import Tensor

from store.places.aligned import ALIGNMENT, aligned_memory


class Pool:
    """Page-aligned buffers; one goes back to the pool when the last tensor on it is gone.

    Code that keeps a tensor keeps its memory: another buffer is made then, and nothing is overwritten.

    Args:
        pinned: page-locked memory, from which a CUDA device copies by itself.
    """

    def __init__(self, pinned: bool = False):
        self.pinned = pinned
        self.n_made = 0
        self._free: dict[int, list[object]] = {}

    def take(self, nbytes: int) -> Tensor:
        """A buffer [nbytes] uint8 with arbitrary content."""
        free = self._free.setdefault(nbytes, [])
        memory = free.pop() if free else self._make(nbytes)
        view = np.frombuffer(memory, np.uint8, nbytes)  # type: ignore[call-overload]
        weakref.finalize(view, _give_back, free, memory).atexit = False
        return torch.from_numpy(view)

    def _make(self, nbytes: int) -> object:
        self.n_made += 1
        if not self.pinned:
            return aligned_memory(nbytes)
        raw = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, pin_memory=True).numpy()
        skip = -raw.ctypes.data % ALIGNMENT
        return raw[skip : skip + nbytes]


def _give_back(free: list[object], memory: object) -> None:
    free.append(memory)
