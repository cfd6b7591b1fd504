"""Copies between main memory and a device: streams, pinned memory, and features on their way to their place."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from extract.stages import COPYING_BACK, ENCODING, Course
from store.loading.placement import is_out_of_memory

Key = TypeVar("Key")
Convert = Callable[[], Iterable[tuple[Key, Tensor]]]
Keep = Callable[[Key, Tensor], None]


class Event(Protocol):
    """A point in the work of a device."""

    def synchronize(self) -> None:
        """Wait until the device is there."""


class Streams:
    """Streams of a CUDA device, which copy while it computes."""

    def __init__(self, device: torch.device):
        self._device = device
        self._in, self._out = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A buffer in main memory, from and to which the device copies by itself."""
        return torch.empty(*shape, dtype=dtype, pin_memory=True)

    def copy_in(self, values: Tensor) -> tuple[Tensor, Event]:
        """Begin to copy to the device, where what is computed next waits for it; and the end of that copy."""
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._in):
            placed = values.to(self._device, non_blocking=True)
        copied = _event(self._in)
        computing.wait_event(copied)
        placed.record_stream(computing)  # its memory, of the stream that copies, is in use until this one is done
        return placed, copied

    def mark(self) -> Event:
        """The end of what was given to the device to compute so far."""
        return _event(torch.cuda.current_stream(self._device), timed=True)

    def seconds(self, begin: Event, end: Event) -> float:
        """Between two marks that the device has passed."""
        return begin.elapsed_time(end) / 1000  # type: ignore[attr-defined]

    @contextmanager
    def behind(self, computed: Event) -> Iterator[None]:
        """A context in which the device works on another stream, once `computed` is passed."""
        with torch.cuda.stream(self._out):
            self._out.wait_event(computed)  # type: ignore[arg-type]
            yield

    def copy_out(self, values: Tensor, buffer: Tensor) -> None:
        """Begin to copy to main memory, in the context of `behind`."""
        buffer.copy_(values, non_blocking=True)

    def copied_out(self) -> Event:
        """The end of the copies that were begun in the context of `behind`."""
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
    """Lends buffers in main memory, as many as are needed at once.

    Args:
        streams: that copy from and to them; None: it is ordinary memory.
    """

    def __init__(self, streams: Streams | None = None):
        self._streams = streams
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
        return torch.empty(n, *shape, dtype=dtype) if self._streams is None else self._streams.allocate((n, *shape), dtype)

    def give_back(self, buffer: Tensor, copied: Event | None = None) -> None:
        """Have a buffer used again, once `copied` is passed."""
        self._free[tuple(buffer.shape[1:]), buffer.dtype].append((buffer, copied))


class Copies:
    """Converts features and keeps them, beside a GPU on a separate thread and stream, one batch behind.

    Without a GPU there is nothing to wait for, and it runs at once.

    Args:
        streams: of the GPU where features are computed.
        course: what the thread that computes does.
        on_memory: called where the device has too little memory to convert features, before it is tried once more.
    """

    def __init__(self, streams: Streams | None, course: Course, on_memory: Callable[[], None] = lambda: None):
        self._streams, self._course, self._on_memory = streams, course, on_memory
        self._of_thread, self._buffers = Course(), Buffers(streams)
        self._thread = ThreadPoolExecutor(1, "beyondcls-copies")
        self._running: Future[None] | None = None
        self.has_failed = False

    @property
    def run_behind(self) -> bool:
        """Whether `run` returns before all is kept."""
        return self._streams is not None

    def run(self, convert: Convert[Key], keep: Keep[Key], began: Event | None = None) -> None:
        """Begin to convert features that were just computed, and to keep the results, once those before are kept.

        Args:
            convert: gives what is to be kept, by key, on the device. It holds on to the features, so that their memory is not
                used for others.
            keep: called with each in main memory, which is used again after the call.
            began: when the device began to compute the features.

        Raises:
            Exception: what came of the features before.
        """
        if self._streams is None:
            with self._course.doing(COPYING_BACK):
                for key, values in convert():
                    keep(key, values.cpu())
            return
        computed = self._streams.mark()
        self.wait()
        self._running = self._thread.submit(self._run_behind, self._streams, began, computed, convert, keep)

    def wait(self) -> None:
        """Wait until all is kept.

        Raises:
            Exception: what came of the last features.
        """
        if self._running is not None:
            running, self._running = self._running, None
            with self._course.waiting_for(self._of_thread, COPYING_BACK):
                self.has_failed = running.exception() is not None
                running.result()

    def _run_behind(
        self, streams: Streams, began: Event | None, computed: Event, convert: Convert[Key], keep: Keep[Key]
    ) -> None:
        with self._of_thread.doing(ENCODING):
            computed.synchronize()
        if began is not None:
            self._course.computed(streams.seconds(began, computed))
        with self._of_thread.doing(COPYING_BACK):
            try:
                copies = self._copied(streams, computed, convert)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                copies = None
            if copies is None:  # outside of `except`, whose traceback holds on to the memory
                self._on_memory()
                copies = self._copied(streams, computed, convert)
            for key, buffer, n in copies:
                keep(key, buffer[:n])
                self._buffers.give_back(buffer)

    def _copied(self, streams: Streams, computed: Event, convert: Convert[Key]) -> list[tuple[Key, Tensor, int]]:
        """What is to be kept, by key, in buffers of main memory, and how many rows of each."""
        copies = []
        with streams.behind(computed):
            for key, values in convert():
                buffer = self._buffers.take(len(values), values.shape[1:], values.dtype)
                streams.copy_out(values, buffer[: len(values)])
                copies.append((key, buffer, len(values)))
                del values  # the same stream may use its memory again, after this copy
            copied = streams.copied_out()
        copied.synchronize()
        return copies
