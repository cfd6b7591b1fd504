"""Page-aligned memory: what a disk can read into and write from without a copy in between."""

import math
import mmap

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT = 4096  # of addresses, offsets and lengths that bypass the page cache; suits every disk in use


def aligned_memory(nbytes: int) -> memoryview:
    """Zeros, freed with their last view."""
    return memoryview(mmap.mmap(-1, max(nbytes, 1)))


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """As `np.zeros`."""
    n = math.prod(shape)
    return np.frombuffer(aligned_memory(n * np.dtype(dtype).itemsize), dtype, n).reshape(shape)


def is_aligned(view: memoryview) -> bool:
    """Whether a view begins at a page."""
    return len(view) > 0 and np.frombuffer(view, np.uint8).ctypes.data % ALIGNMENT == 0
