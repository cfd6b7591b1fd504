"""Page-aligned memory: what a disk can read into and write from without a copy in between."""

import math
import mmap
import threading
from contextlib import suppress

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT = 4096  # of addresses, offsets and lengths that bypass the page cache; suits every disk in use
SECTOR = 512  # likewise; suits most disks, and divides a row of the usual ViTs' tokens
HUGE_PAGE = 2 << 20

_local = threading.local()


def aligned_memory(nbytes: int) -> memoryview:
    """Zeros, freed with their last view; a forked process has its own copy."""
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE)  # by default it would be one memory for all of them
    if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)  # touched for the first time, and pinned by the disk, 512 pages at once
    return memoryview(memory)


def scratch(nbytes: int, purpose: str = "rows") -> memoryview:
    """Memory of this thread for one purpose, with arbitrary content, used again."""
    if len(memory := getattr(_local, purpose, memoryview(b""))) < nbytes:
        memory = aligned_memory(nbytes)
        setattr(_local, purpose, memory)
    return memory


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """As `np.zeros`."""
    n = math.prod(shape)
    return np.frombuffer(aligned_memory(n * np.dtype(dtype).itemsize), dtype, n).reshape(shape)


def is_aligned(view: memoryview, alignment: int = ALIGNMENT) -> bool:
    """Whether a view begins at a multiple of `alignment`: a page by default."""
    return len(view) > 0 and np.frombuffer(view, np.uint8).ctypes.data % alignment == 0
