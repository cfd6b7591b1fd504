"""What a GPU does in parallel with the threads of a process: copies between main memory and the device, by streams and pinned
memory, and passes that it starts by itself once they were recorded; and features on their way to their place.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from extract.stages import COPYING_BACK, ENCODING, StageTimes
from store.errors import first_line
from store.loading.placement import is_out_of_memory, pin, unpin

BEHIND = 2  # batches whose features are on their way at most, so that the next is begun before those of the last are kept
ALIGNMENT = 16  # bytes, of tensors among others in one piece of memory


def bytes_of(values: Tensor) -> UInt8[np.ndarray, "*shape"]:
    """The bytes of a tensor in main memory; its last axis is as many times longer as a number has bytes."""
    return values.contiguous().view(torch.uint8).numpy()


@dataclass(frozen=True)
class Packed:
    """Tensors of a device in one piece of its memory, which is copied at once.

    Attributes:
        memory: all of them.
        places: where each begins in it, and its shape in bytes, by key.
    """

    memory: UInt8[Tensor, "n"]
    places: Mapping[Any, tuple[int, tuple[int, ...]]]

    @classmethod
    def of(cls, parts: Iterable[tuple[Hashable, Tensor]]) -> "Packed":
        tensors = {key: values.contiguous().view(torch.uint8) for key, values in parts}
        places, end = {}, 0
        for key, values in tensors.items():
            places[key] = end, tuple(values.shape)
            end += -(-values.nbytes // ALIGNMENT) * ALIGNMENT
        device = next(iter(tensors.values())).device if tensors else None
        memory = torch.zeros(end, dtype=torch.uint8, device=device)  # so that equal tensors are in equal bytes
        for key, (begin, _) in places.items():
            memory[begin : begin + tensors[key].nbytes].copy_(tensors[key].flatten())
        return cls(memory, places)

    def unpacked(self, memory: UInt8[np.ndarray, "n"]) -> Iterator[tuple[Any, UInt8[np.ndarray, "*shape"]]]:
        """The bytes of the tensors, from those of the memory in main memory; by NumPy, as each operation of PyTorch waits for
        the interpreter, which decoders use.
        """
        for key, (begin, shape) in self.places.items():
            yield key, memory[begin : begin + math.prod(shape)].reshape(shape)


class Streams:
    """Streams of a CUDA device, which copy while it computes."""

    def __init__(self, device: torch.device):
        self._device = device
        self._in, self._out = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._of_recordings = torch.cuda.graph_pool_handle()  # one memory, as they are not replayed at once

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A buffer in main memory, from and to which the device copies by itself."""
        return torch.empty(*shape, dtype=dtype, pin_memory=True)

    def pin(self, memory: Tensor) -> None:
        """Have the device copy from this memory by itself, until it is unpinned.

        Raises:
            RuntimeError: it cannot be pinned.
        """
        if not pin(memory):
            raise RuntimeError(f"{memory.nbytes / 1e6:.0f} MB of shared memory cannot be pinned")

    def unpin(self, memory: Tensor) -> None:
        unpin([memory.data_ptr()])

    def copy_in(self, values: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        """Begin to copy to the device, where what is computed next waits for it; and the end of that copy."""
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._in):
            placed = values.to(self._device, non_blocking=True)
        copied = _end_of_stream(self._in)
        computing.wait_event(copied)
        placed.record_stream(computing)  # its memory, of the stream that copies, is in use until this one is done
        return placed, copied

    def mark(self) -> torch.cuda.Event:
        """The end of what was given to the device to compute so far."""
        return _end_of_stream(torch.cuda.current_stream(self._device), timed=True)

    def record(self, compute: Callable[[], Packed]) -> tuple[Callable[[], None], Packed]:
        """What starts again, by one call, all that `compute` has the device do, and its result, which is then another. Nothing
        is computed yet; other threads may use the device meanwhile.
        """
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._device)
        with torch.cuda.device(self._device), torch.cuda.graph(graph, self._of_recordings, stream, "thread_local"):
            result = compute()
        return graph.replay, result

    @contextmanager
    def behind(self, computed: torch.cuda.Event) -> Iterator[None]:
        """A context in which the device works on another stream, once `computed` is passed."""
        with torch.cuda.stream(self._out):
            self._out.wait_event(computed)
            yield

    def copy_out(self, values: Tensor, buffer: Tensor) -> None:
        buffer.copy_(values, non_blocking=True)

    def copied_out(self) -> torch.cuda.Event:
        return _end_of_stream(self._out)


def _end_of_stream(stream: torch.cuda.Stream, timed: bool = False) -> torch.cuda.Event:
    """The present end of a stream; a thread that waits for it sleeps, as decoding needs the cores."""
    event = torch.cuda.Event(enable_timing=timed, blocking=True)
    event.record(stream)
    return event


def streams_of(device: torch.device) -> Streams | None:
    """Those of a GPU; None for a device that only computes."""
    return Streams(device) if device.type == "cuda" else None


@dataclass
class Replay:
    """What a device computes of batches of one shape: recorded with the second of them, and replayed from the third on.

    To start some 700 operations one by one takes a thread of Python longer than a GPU takes to do them, as it waits for the
    interpreter at each while others decode. A recording is used if it gives, for that batch, the very bytes that were computed
    without it; else `warn` says why not.

    Attributes:
        streams: of the device.
        compute: gives features of images on the device; the same operations for all batches.
        warn: called with what a user should know.
    """

    streams: Streams
    compute: Callable[[Tensor], Packed]
    warn: Callable[[str], None] = lambda _: None
    _n_computed: int = field(init=False, default=0)
    _replay: Callable[[], None] | None = field(init=False, default=None)

    def __call__(self, images: Tensor) -> Packed:
        if self._replay is not None:
            self._images.copy_(images)
            self._replay()
            return replace(self._recorded, memory=self._recorded.memory.clone())  # it is overwritten by the next
        packed = self.compute(images)
        self._n_computed += 1
        if self._n_computed == 2 and (problem := self._record(images, packed)):
            self.warn(f"operations of the GPU are started one by one, which is slower where others decode: {problem}")
        return packed

    def _record(self, images: Tensor, expected: Packed) -> str | None:
        """Why it cannot be recorded; None if it was."""
        try:
            self._images = images.clone()
            start, self._recorded = self.streams.record(partial(self.compute, self._images))
        except RuntimeError as error:  # where the encoder waits for a result, say, or asks for it
            return "there is too little memory for a recording" if is_out_of_memory(error) else first_line(error)
        start()
        if not torch.equal(self._recorded.memory, expected.memory):
            return "a recording of them gives other values"
        self._replay = start
        return None


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
    """Keeps features, with a GPU on a separate thread and stream, two batches behind; without one at once. `course`: what the
    thread that computes does.
    """

    streams: Streams | None
    course: StageTimes
    has_failed: bool = field(init=False, default=False)
    n_begun: int = field(init=False, default=0)  # features of as many batches and views

    def __post_init__(self) -> None:
        self.run_behind = self.streams is not None  # whether `run` returns before all is kept
        self._of_thread, self._buffers = StageTimes(), Buffers(self.streams)
        self._thread = ThreadPoolExecutor(1, "beyondcls-copies")
        self._running: deque[Future[None]] = deque()

    def run(
        self,
        features: Packed | Iterable[tuple[Any, Tensor]],
        keep: Callable[[Any, UInt8[np.ndarray, "*shape"]], object],
        began: torch.cuda.Event | None = None,
    ) -> None:
        """Begin to copy features that were just computed, and to keep them, once all but one of those before are kept.

        What came of these is raised.

        Args:
            features: what is to be kept, by key; packed where there are streams.
            keep: called with the bytes of each (`bytes_of`), whose memory is used again after the call.
            began: when the device began to compute the features.
        """
        if not isinstance(features, Packed):
            with self.course.doing(COPYING_BACK):
                for key, values in features:
                    keep(key, bytes_of(values.cpu()))
            return
        assert self.streams is not None
        computed = self.streams.mark()
        self.wait(BEHIND - 1)
        self.n_begun += 1
        self._running.append(self._thread.submit(self._run_behind, self.streams, began, computed, features, keep))

    def wait(self, n_left: int = 0) -> None:
        """Wait until all is kept but the last `n_left` features; what came of those before is raised."""
        while len(self._running) > n_left:
            running = self._running.popleft()
            with self.course.waiting_for(self._of_thread, COPYING_BACK):
                self.has_failed = running.exception() is not None
                running.result()

    def _run_behind(self, streams: Streams, began: Any, computed: Any, features: Packed, keep: Any) -> None:
        with self._of_thread.doing(ENCODING):
            computed.synchronize()
        if began is not None:
            self.course.computed(began.elapsed_time(computed) / 1000)
        with self._of_thread.doing(COPYING_BACK):
            buffer = self._buffers.take(len(features.memory), (), torch.uint8)
            copy = buffer[: len(features.memory)]
            with streams.behind(computed):
                streams.copy_out(features.memory, copy)
                copied = streams.copied_out()
            copied.synchronize()
            for key, values in features.unpacked(copy.numpy()):
                keep(key, values)
            self._buffers.give_back(buffer)
