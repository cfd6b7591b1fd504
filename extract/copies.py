"""Copies between main memory and a device: streams, pinned memory, and features on their way to their place."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from extract.stages import COPYING_BACK, ENCODING, Course
from store.loading.placement import is_out_of_memory


class Streams:
    """Streams of a CUDA device, which copy while it computes."""

    def __init__(self, device: torch.device):
        self._device = device
        self._in, self._out = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A buffer in main memory, from and to which the device copies by itself."""
        return torch.empty(*shape, dtype=dtype, pin_memory=True)

    def copy_in(self, values: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        """Begin to copy to the device, where what is computed next waits for it; and the end of that copy."""
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._in):
            placed = values.to(self._device, non_blocking=True)
        copied = _event(self._in)
        computing.wait_event(copied)
        placed.record_stream(computing)  # its memory, of the stream that copies, is in use until this one is done
        return placed, copied

    def mark(self) -> torch.cuda.Event:
        """The end of what was given to the device to compute so far."""
        return _event(torch.cuda.current_stream(self._device), timed=True)

    @contextmanager
    def behind(self, computed: torch.cuda.Event) -> Iterator[None]:
        """A context in which the device works on another stream, once `computed` is passed."""
        with torch.cuda.stream(self._out):
            self._out.wait_event(computed)
            yield

    def copy_out(self, values: Tensor, buffer: Tensor) -> None:
        buffer.copy_(values, non_blocking=True)

    def copied_out(self) -> torch.cuda.Event:
        return _event(self._out)


def _event(stream: torch.cuda.Stream, timed: bool = False) -> torch.cuda.Event:
    """The present end of a stream; a thread that waits for it sleeps, as decoding needs the cores."""
    event = torch.cuda.Event(enable_timing=timed, blocking=True)
    event.record(stream)
    return event


def streams_of(device: torch.device) -> Streams | None:
    """Those of a GPU; None for a device that does nothing beside computing."""
    return Streams(device) if device.type == "cuda" else None


class Buffers:
    """Lends buffers in main memory, from and to which streams copy, as many as are needed at once."""

    def __init__(self, streams: Streams | None = None):
        self._streams = streams
        self._free: dict[object, deque[tuple[Tensor, torch.cuda.Event | None]]] = defaultdict(deque)

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
        return torch.empty(n, *shape, dtype=dtype) if self._streams is None else self._streams.allocate((n, *shape), dtype)

    def give_back(self, buffer: Tensor, copied: torch.cuda.Event | None = None) -> None:
        """Have a buffer used again, once `copied` is passed."""
        self._free[tuple(buffer.shape[1:]), buffer.dtype].append((buffer, copied))


@dataclass
class Copies:
    """Converts features and keeps them, beside a GPU on a separate thread and stream, one batch behind; without one at once.

    `course`: what the thread that computes does; `on_memory`: called where the device has too little memory to convert
    features, before it is tried once more.
    """

    streams: Streams | None
    course: Course
    on_memory: Callable[[], None] = lambda: None
    has_failed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.run_behind = self.streams is not None  # whether `run` returns before all is kept
        self._of_thread, self._buffers = Course(), Buffers(self.streams)
        self._thread = ThreadPoolExecutor(1, "beyondcls-copies")
        self._running: Future[None] | None = None

    def run(
        self,
        convert: Callable[[], Iterable[tuple[Any, Tensor]]],
        keep: Callable[[Any, Tensor], object],
        began: torch.cuda.Event | None = None,
    ) -> None:
        """Begin to convert features that were just computed, and to keep the results, once those before are kept, whose errors
        it raises.

        Args:
            convert: gives what is to be kept, by key, on the device. It holds on to the features, so that their memory is not
                used for others.
            keep: called with each in main memory, which is used again after the call.
            began: when the device began to compute the features.
        """
        if self.streams is None:
            with self.course.doing(COPYING_BACK):
                for key, values in convert():
                    keep(key, values.cpu())
            return
        computed = self.streams.mark()
        self.wait()
        self._running = self._thread.submit(self._run_behind, self.streams, began, computed, convert, keep)

    def wait(self) -> None:
        """Wait until all is kept; what came of the last features is raised."""
        if self._running is not None:
            running, self._running = self._running, None
            with self.course.waiting_for(self._of_thread, COPYING_BACK):
                self.has_failed = running.exception() is not None
                running.result()

    def _run_behind(self, streams: Streams, began: Any, computed: Any, convert: Any, keep: Any) -> None:
        def copied() -> list[tuple[Any, Tensor, int]]:
            copies = []
            with streams.behind(computed):
                for key, values in convert():
                    buffer = self._buffers.take(len(values), values.shape[1:], values.dtype)
                    streams.copy_out(values, buffer[: len(values)])
                    copies.append((key, buffer, len(values)))
                    del values  # the same stream may use its memory again, after this copy
                end = streams.copied_out()
            end.synchronize()
            return copies

        with self._of_thread.doing(ENCODING):
            computed.synchronize()
        if began is not None:
            self.course.computed(began.elapsed_time(computed) / 1000)
        with self._of_thread.doing(COPYING_BACK):
            try:
                copies = copied()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                copies = None
            if copies is None:  # outside of `except`, whose traceback holds on to the memory
                self.on_memory()
                copies = copied()
            for key, buffer, n in copies:
                keep(key, buffer[:n])
                self._buffers.give_back(buffer)
