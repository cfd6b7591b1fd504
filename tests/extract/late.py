"""A device on which nothing happens before someone waits for it: what a program may rely on, and no more."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from extract.copies import Packed, Streams

POISON = 0xA5


class LateEvent:
    """Does what was given to the device up to here when it is waited for."""

    def __init__(self, work: list[Callable[[], None]], computing_s: float = 0.0):
        self._work, self._computing_s = work, computing_s

    def synchronize(self) -> None:
        while self._work:
            self._work.pop(0)()

    def elapsed_time(self, end: "LateEvent") -> float:
        return 1000 * self._computing_s


class LateStreams(Streams):
    """Copies as a GPU may do them at worst, each at the last moment; computing is that of the CPU."""

    def __init__(self) -> None:
        self.allocated: list[tuple[int, ...]] = []  # shapes of buffers
        self.copied_in: list[tuple[Tensor, Tensor, LateEvent]] = []  # source, copy, and end of each copy to the device
        self.recorded = 0  # computations
        self.pinned: list[Tensor] = []  # memory, as long as it is
        self._out: list[Callable[[], None]] = []
        self._is_behind = False

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self.allocated.append(tuple(shape))
        buffer = torch.empty(*shape, dtype=dtype)
        buffer.view(torch.uint8).fill_(POISON)
        return buffer

    def pin(self, memory: Tensor) -> None:
        self.pinned.append(memory)

    def unpin(self, memory: Tensor) -> None:
        self.pinned = [one for one in self.pinned if one is not memory]

    def copy_in(self, values: Tensor) -> tuple[Tensor, LateEvent]:
        """The encoder needs them at once; whoever overwrites `values` before the event would have changed them."""
        placed = values.clone()

        def compare() -> None:
            assert torch.equal(values, placed), "a buffer was used again before its copy had ended"

        event = LateEvent([compare])
        self.copied_in.append((values, placed, event))
        return placed, event

    def mark(self) -> LateEvent:
        return LateEvent([])

    def record(self, compute: Callable[[], Packed]) -> tuple[Callable[[], None], Packed]:
        """A recording computes nothing until it is replayed, and then in the memory that it was recorded in."""
        result = compute()
        result.memory.fill_(POISON)
        self.recorded += 1

        def replay() -> None:
            result.memory.copy_(compute().memory)

        return replay, result

    @contextmanager
    def behind(self, computed: LateEvent) -> Iterator[None]:
        self._is_behind = True
        yield
        self._is_behind = False

    def copy_out(self, values: Tensor, buffer: Tensor) -> None:
        assert self._is_behind
        self._out.append(lambda: buffer.copy_(values))  # type: ignore[arg-type, func-returns-value, return-value]

    def copied_out(self) -> LateEvent:
        work, self._out = self._out, []
        return LateEvent(work)
