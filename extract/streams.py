"""What a GPU does beside computing: copies to it and from it, each on a stream of its own, and memory that both can reach."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A point in the work of a device."""

    def synchronize(self) -> None:
        """Wait until the device is there."""


class Streams(Protocol):
    """Copies of a device, which run while it computes."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A buffer in main memory, from and to which the device copies by itself."""

    def copy_in(self, values: Tensor) -> tuple[Tensor, Event]:
        """Begin to copy to the device, where what is computed next waits for it; and the end of that copy."""

    def mark(self) -> Event:
        """The end of what was given to the device to compute so far."""

    def seconds(self, begin: Event, end: Event) -> float:
        """Between two marks that the device has passed."""

    def behind(self, computed: Event) -> AbstractContextManager[None]:
        """A context in which the device works on another stream, once `computed` is passed."""

    def copy_out(self, values: Tensor, buffer: Tensor) -> None:
        """Begin to copy to main memory, in the context of `behind`."""

    def copied_out(self) -> Event:
        """The end of the copies that were begun in the context of `behind`."""


class CudaStreams:
    """Streams of a CUDA device."""

    def __init__(self, device: torch.device):
        self._device = device
        self._in, self._out = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype, pin_memory=True)

    def copy_in(self, values: Tensor) -> tuple[Tensor, Event]:
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._in):
            placed = values.to(self._device, non_blocking=True)
        copied = _event(self._in)
        computing.wait_event(copied)
        placed.record_stream(computing)  # its memory, of the stream that copies, is in use until this one is done
        return placed, copied

    def mark(self) -> torch.cuda.Event:
        return _event(torch.cuda.current_stream(self._device), timed=True)

    def seconds(self, begin: Event, end: Event) -> float:
        return begin.elapsed_time(end) / 1000  # type: ignore[attr-defined]

    @contextmanager
    def behind(self, computed: Event) -> Iterator[None]:
        with torch.cuda.stream(self._out):
            self._out.wait_event(computed)  # type: ignore[arg-type]
            yield

    def copy_out(self, values: Tensor, buffer: Tensor) -> None:
        buffer.copy_(values, non_blocking=True)

    def copied_out(self) -> Event:
        return _event(self._out)


def _event(stream: torch.cuda.Stream, timed: bool = False) -> torch.cuda.Event:
    """The present end of a stream; a thread that waits for it sleeps, as decoding needs the cores."""
    event = torch.cuda.Event(enable_timing=timed, blocking=True)
    event.record(stream)
    return event


def streams_of(device: torch.device) -> Streams | None:
    """Those of a GPU; None for a device that does nothing beside computing."""
    return CudaStreams(device) if device.type == "cuda" else None
