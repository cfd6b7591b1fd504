"""Images decoded in processes, where the threads of one would wait for its interpreter, each for all others. A forked process
has the images of the one that it comes from, and shares the memory that pixels are written to.
"""

import ctypes
import mmap
import multiprocessing
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from extract.transform import Crop
from store.errors import first_line

PR_SET_PDEATHSIG = 1  # of prctl(2)


@dataclass(frozen=True)
class Decoded:
    """An image ready for the encoder, or what was wrong with it.

    Attributes:
        size: height and width of the original, pixels.
        apart: views that did not fit into the memory of their batch, as they are no pixels [3, H, W] of 8 bits.
        orientation: by EXIF, if the image is not upright and was not turned.
    """

    crops: dict[int, Crop]
    size: tuple[int, int]
    problem: str | None = None
    apart: dict[int, Tensor] = field(default_factory=dict)
    orientation: int | None = None


Decode = Callable[[int, Sequence[int], Mapping[int, Tensor]], Decoded]  # of a row, its views, and where their pixels go


def decode_all(
    decode: Decode, first: int, rows: Sequence[int], views: Sequence[int], pixels: Mapping[int, Tensor]
) -> list[Decoded]:
    """Images of a batch from its position `first` on; `pixels` of the batch, by view."""
    return [decode(row, views, {view: of_batch[i] for view, of_batch in pixels.items()}) for i, row in enumerate(rows, first)]


class Processes:
    """Processes that decode images.

    They begin as copies of this one with the first images that are to be decoded, and know the memory that was shared before.

    Args:
        n: how many.
        decode: is called there. What raises an error, or cannot be decoded there for any other reason, is left to this process.
        warn: called with what a user should know.
    """

    def __init__(self, n: int, decode: Decode, warn: Callable[[str], None]):
        self.n, self.decode, self._warn = n, decode, warn
        self.shared: list[Tensor] = []
        self._numbers: dict[int, int] = {}  # of shared memory, by its address
        self._pool: ProcessPoolExecutor | None = None
        self._is_broken = False

    def share(self, shape: Sequence[int]) -> Tensor:
        """Memory for pixels [n, 3, H, W] that is shared."""
        assert self._pool is None, "processes know what was shared before they began"
        memory = torch.from_numpy(np.frombuffer(mmap.mmap(-1, int(np.prod(shape))), np.uint8)).view(*shape)
        self._numbers[memory.data_ptr()] = len(self.shared)
        self.shared.append(memory)
        return memory

    def begin(
        self, rows: Sequence[int], views: Sequence[int], pixels: Mapping[int, Tensor]
    ) -> Callable[[], list[Decoded]] | None:
        """Begin to decode images; what is returned waits for them. None if they are not to be decoded here.

        Args:
            views: of each image.
            pixels: by view, what goes to the first rows of memory; a view without any has its crop made alone.
        """
        numbers = {view: self._numbers.get(memory.data_ptr()) for view, memory in pixels.items()}
        if self._is_broken or None in numbers.values():
            return None
        step = -(-len(rows) // self.n)
        try:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(self.n, multiprocessing.get_context("fork"), _begin, (self,))
            parts = range(0, len(rows), step)
            futures = [self._pool.submit(_decode, numbers, begin, rows[begin : begin + step], views) for begin in parts]
        except (OSError, BrokenExecutor) as error:
            self.fail(error)
            return None

        def finish() -> list[Decoded]:
            decoded: list[Decoded] = []
            for future in futures:
                try:
                    part = future.result()
                except BrokenExecutor as error:
                    self.fail(error)
                    part = None
                if part is None:
                    part = decode_all(self.decode, len(decoded), rows[len(decoded) :][:step], views, pixels)
                decoded += part
            return decoded

        return finish

    def fail(self, error: Exception) -> None:
        """Leave everything to threads from now on."""
        if not self._is_broken:
            self._is_broken = True
            self._warn(f"images are decoded by threads of one process, which may be slower: {first_line(error)}")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


_ours: list[Processes] = []  # in a process that decodes


def _begin(processes: Processes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process, which gets it as well, ends this one
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # likewise where that is killed
    torch.set_num_threads(1)  # PyTorch's other threads were not copied
    _ours[:] = [processes]


def _decode(numbers: Mapping[int, Any], first: int, rows: Sequence[int], views: Sequence[int]) -> list[Decoded] | None:
    """None if anything is wrong: the other process, which decodes them again, has the error."""
    (ours,) = _ours
    try:
        pixels = {view: ours.shared[number] for view, number in numbers.items()}
        decoded = decode_all(ours.decode, first, rows, views, pixels)
    except Exception:
        return None
    return None if any(one.apart for one in decoded) else decoded
