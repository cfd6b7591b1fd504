"""Memory for batches that is used again and again, but never before the copy from it has ended."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from extract.streams import Event


def pageable(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Ordinary memory."""
    return torch.empty(*shape, dtype=dtype)


class Buffers:
    """Lends buffers, as many as are needed at once.

    Args:
        allocate: makes a buffer of a shape and dtype.
    """

    def __init__(self, allocate: Callable[[Sequence[int], torch.dtype], Tensor] = pageable):
        self._allocate = allocate
        self._free: dict[object, deque[tuple[Tensor, Event | None]]] = defaultdict(deque)

    def take(self, n: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A buffer of this dtype with at least `n` rows of this shape; its content is left over from before."""
        free = self._free[tuple(shape), dtype]
        while free:
            buffer, copied = free.popleft()  # the one that has rested longest
            if len(buffer) < n:
                continue  # of a small first batch: no longer of use
            if copied is not None:
                copied.synchronize()
            return buffer
        return self._allocate((n, *shape), dtype)

    def give_back(self, buffer: Tensor, copied: Event | None = None) -> None:
        """Have a buffer used again, once `copied` is passed."""
        self._free[tuple(buffer.shape[1:]), buffer.dtype].append((buffer, copied))
