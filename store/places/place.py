"""What a place is: files of feature sets below one address; memory into which they are read, and several requests at a time."""

import math
import mmap
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

PIECE_NBYTES = 1 << 20  # enough for a disk to be at full speed, little enough to stay in the processor's cache
ALIGNMENT = 4096  # of addresses, offsets and lengths that bypass the page cache; suits every disk in use
SECTOR = 512  # the same; suits most disks, and divides a row of the usual ViTs' tokens
HUGE_PAGE = 2 << 20
_local = threading.local()
Item = TypeVar("Item")
Result = TypeVar("Result")


class ShardFile(ABC):
    """One shard, opened for reading at any offset, by several threads at once."""

    @abstractmethod
    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        """`nbytes` bytes from `offset`; they may be in `scratch`, or end early where the file does.

        `scratch` is page-aligned and at least `nbytes` + 2 · ALIGNMENT long.
        """

    def read_into(self, offset: int, views: list[memoryview]) -> bool:
        """Fill `views` one after the other from `offset`, without a copy in between; False if that is not possible."""
        return False


class Place(ABC):
    """Files by their path below one address, and how they want to be read.

    Attributes:
        piece_nbytes: most bytes of one read.
        requests: reads in flight; more than one where each waits for a network.
        block_nbytes: neighbours that a shuffled epoch keeps together; None: as few as make a disk fast.
    """

    piece_nbytes = PIECE_NBYTES
    requests = 1
    block_nbytes: int | None = None

    @abstractmethod
    def address(self, name: str = "") -> str:
        """The address of a file, or of the place itself; for messages, too."""

    @abstractmethod
    def content(self, name: str) -> bytes | None:
        """All of a small file; None if there is none."""

    def expect(self, names: Iterable[str]) -> None:  # noqa: B027, a disk needs no warning
        """Announce small files whose content will be asked for soon."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""

    @abstractmethod
    def has_folder(self, name: str) -> bool:
        """Whether there is a file below this path."""

    @abstractmethod
    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        """A shard.

        Args:
            direct: bypass the page cache; None does so unless most of the file is in it.

        Raises:
            StoreError: it is missing or cannot be read.
        """

    def size_now(self, name: str) -> int | None:
        """Bytes of a file, looked up each time; None if there is none."""
        return self.size(name)

    def drop_copy(self, name: str) -> bool:
        """Forget a copy of a file that is read in its place, as that is damaged; false if there is none."""
        return False


def aligned_memory(nbytes: int) -> memoryview:
    """Zeros, freed with their last view; a forked process has its own copy."""
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE)  # by default it would be one memory for all of them
    if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)  # touched for the first time, and pinned by the disk, 512 pages at once
    return memoryview(memory)


def scratch(nbytes: int) -> memoryview:
    """Memory of this thread, with arbitrary content, used again."""
    if len(getattr(_local, "memory", b"")) < nbytes:
        _local.memory = aligned_memory(nbytes)
    memory: memoryview = _local.memory
    return memory


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """As `np.zeros`."""
    n = math.prod(shape)
    return np.frombuffer(aligned_memory(n * np.dtype(dtype).itemsize), dtype, n).reshape(shape)


def is_aligned(view: memoryview, alignment: int = ALIGNMENT) -> bool:
    """Whether a view begins at a multiple of `alignment`: a page by default."""
    return len(view) > 0 and np.frombuffer(view, np.uint8).ctypes.data % alignment == 0


def map_parallel(work: Callable[[Item], Result], items: Iterable[Item], requests: int) -> Iterator[Result]:
    """`work` of each item, in their order; in as many threads as `requests`, or in this one.

    Raises:
        Exception: what `work` raises; items not begun by then are left undone.
    """
    if requests <= 1:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(requests, "beyondcls-requests")
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
