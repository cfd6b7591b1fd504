"""Stored rows: read by several threads to their places in reused memory, kept there or streamed; and batches onto a GPU."""

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from store.format.array import ArrayReader
from store.format.layout import SCALE
from store.loading.placement import PinnedRows, pin, unpin
from store.places.place import ALIGNMENT, aligned_memory, aligned_zeros

LONG_ROW = 1 << 14  # bytes
DISK_READS = 16  # of a disk in flight: some disks are not at full speed with fewer
CACHED_READS = min(8, max(4, (os.cpu_count() or 2) // 2))  # of the page cache: more threads take turns
RUNS = 4  # runs that a thread reads from a disk before it takes the next job: handing over costs time
UPLOAD_NBYTES = 64 << 20  # read before it is copied to the device, at least
AHEAD = 2  # batches on their way to a GPU, or ready there, while the training loop has one
WINDOWS = 3  # in memory: one being consumed, the next, and one begun while that is awaited
Key = tuple[str, str]  # name of an array in the batch, then "" for the array itself or SCALE for its scales
Batch = dict[str, Tensor]


def parts_of(arrays: Mapping[str, Sequence[ArrayReader]]) -> dict[Key, list[ArrayReader]]:
    """The stored arrays behind `arrays`, one for each view: themselves, and their scales if they have any."""
    parts: dict[Key, list[ArrayReader]] = {}
    for name, views in arrays.items():
        parts[name, ""] = list(views)
        if scales := [array.scale for array in views if array.scale is not None]:
            parts[name, SCALE] = scales
    return parts


class Pool:
    """Page-aligned buffers; one goes back to the pool when the last tensor on it is gone.

    Code that keeps a tensor keeps its memory: another buffer is made then, and nothing is overwritten.

    Args:
        pinned: page-locked memory, from which a CUDA device copies by itself.
    """

    def __init__(self, pinned: bool = False):
        self.pinned = pinned
        self.n_made = 0
        self._free: dict[int, list[object]] = {}

    def take(self, nbytes: int) -> Tensor:
        """A buffer [nbytes] uint8 with arbitrary content."""
        free = self._free.setdefault(nbytes, [])
        memory = free.pop() if free else self._make(nbytes)
        view = np.frombuffer(memory, np.uint8, nbytes)  # type: ignore[call-overload]
        weakref.finalize(view, free.append, memory).atexit = False
        return torch.from_numpy(view)

    def _make(self, nbytes: int) -> object:
        self.n_made += 1
        if not self.pinned:
            return aligned_memory(nbytes)
        raw = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, pin_memory=True).numpy()
        skip = -raw.ctypes.data % ALIGNMENT
        return raw[skip : skip + nbytes]


class StoredArrays:
    """Stored arrays of a loader, and how they are read.

    Attributes:
        parts: stored arrays, one for each view.
        rows_in: [N] gives the row of each image where that is not its number, by the name in the batch.
        pool: memory for batches, and for copies to a device.
        threads: that read.
        direct: as for `Place.open`.
        wait_s: seconds for which the consumer of `windows` had to wait.
    """

    def __init__(
        self,
        parts: Mapping[Key, Sequence[ArrayReader]],
        rows_in: Mapping[str, np.ndarray],
        pool: Pool,
        threads: int,
        direct: bool | None,
    ):
        self.parts, self.rows_in, self.pool, self.threads, self.direct, self.wait_s = parts, rows_in, pool, threads, direct, 0.0

    def jobs(
        self, key: Key, views: Sequence[ArrayReader], images: np.ndarray, view: np.ndarray | None, target: Tensor, stop: Event
    ) -> Iterator[Callable[[], None]]:
        """Jobs that together read stored rows into `target` [n · row_nbytes] uint8, in the order of `images`.

        Args:
            views: those of a part that are read.
            view: [N] which of them to read for each image; the first by default.
        """
        rows = self.rows_in[key[0]][images] if key[0] in self.rows_in else images
        flat = target.numpy().reshape(len(rows), -1)
        for number, array in enumerate(views if view is not None else views[:1]):
            places = np.argsort(rows, kind="stable")
            if view is not None:
                places = places[view[images][places] == number]
            ordered = rows[places]
            runs = list(array.runs(ordered))
            step = max(1, min(RUNS, -(-len(runs) // DISK_READS))) if array.place.requests == 1 else 1
            for i in range(0, len(runs), step):
                yield partial(self._read, array, ordered, places, runs[i : i + step], flat, stop)

    def _read(
        self, array: ArrayReader, rows: np.ndarray, places: np.ndarray, runs: list[tuple[int, int]], out: np.ndarray, end: Event
    ) -> None:
        """Read some runs of neighbouring rows (`ArrayReader.read_run`), straight to their places where that is possible."""
        nbytes, shard_rows = array.layout.row_nbytes, array.layout.shard_rows
        memory, file, shard_of_file = out.reshape(-1).data, None, -1
        for begin, stop in runs:
            if end.is_set():
                return
            first, last = int(rows[begin]), int(rows[stop - 1])
            # Where rows are long enough for that to be cheaper than a copy.
            if nbytes >= LONG_ROW and last - first + 1 == stop - begin:
                views = [memory[place * nbytes : (place + 1) * nbytes] for place in places[begin:stop].tolist()]
                if (shard := first // shard_rows) != shard_of_file:
                    file, shard_of_file = array.compared_file(shard, self.direct), shard
                # As the interpreter does little for each run, threads wait less for one another.
                if file is not None and file.read_into((first - shard * shard_rows) * nbytes, views):
                    continue
                if array.fetch_into(first, last + 1, views, self.direct):
                    continue
            array.read_run(rows, places, (begin, stop), out, self.direct)

    def windows(
        self, windows: Iterable[np.ndarray], view: np.ndarray | None = None
    ) -> Generator[tuple[np.ndarray, dict[Key, Tensor]], None, None]:
        """Each window's rows, and their bytes [rows, row_nbytes], read ahead. A caller that stops early has to close it.

        Args:
            view: [N] which view of each image to read; the first by default.
        """
        remaining, stop = iter(windows), Event()
        ahead: deque[tuple[np.ndarray, dict[Key, Tensor], list[Future[None]]]] = deque()
        with ThreadPoolExecutor(self.threads, "beyondcls-loader") as readers:

            def begin_next() -> None:
                for rows in islice(remaining, 1):
                    targets, jobs = {}, []
                    for key, views in self.parts.items():
                        nbytes = views[0].layout.row_nbytes
                        targets[key] = self.pool.take(len(rows) * nbytes).view(len(rows), -1)
                        view_of = view if len(views) > 1 else None
                        new = self.jobs(key, views, rows, view_of, targets[key], stop)
                        jobs += [readers.submit(job) for job in new]
                    ahead.append((rows, targets, jobs))

            try:
                begin_next()
                while ahead:
                    rows, targets, jobs = ahead.popleft()
                    begin_next()
                    began = time.perf_counter()
                    with record_function("beyondcls.loader.wait"):
                        for job in jobs:
                            job.result()
                    self.wait_s += time.perf_counter() - began
                    yield rows, targets
                    del targets  # its memory is free again once the consumer's batches are gone
            finally:
                stop.set()
                readers.shutdown(wait=True, cancel_futures=True)


class Resident:
    """Some rows of stored arrays that are kept whole, as bytes, in memory or on a device.

    Args:
        rows: images that are kept.
        n: images of the set, N.
        device: where they are kept.
    """

    def __init__(self, source: StoredArrays, rows: np.ndarray, n: int, device: torch.device):
        self.device, self._pool, self._n = device, source.pool, len(rows)
        slot = np.full(n, -1, np.int64)
        slot[rows] = np.arange(len(rows))
        self._slot = torch.from_numpy(slot).to(device)  # position of an image among those that are kept
        self._values: dict[Key, Tensor] = {}
        on_host, stop = device.type == "cpu", Event()
        with ThreadPoolExecutor(source.threads, "beyondcls-loader") as readers:
            for key, views in source.parts.items():
                nbytes = views[0].layout.row_nbytes
                shape = (len(views), len(rows), nbytes)
                # On the CPU page-aligned, so that rows are read straight to their places.
                empty = torch.from_numpy(aligned_zeros(shape, np.uint8)) if on_host else None
                values = torch.empty(shape, dtype=torch.uint8, device=device) if empty is None else empty
                # Before they are copied to the device: enough to keep all threads busy.
                upload = max(UPLOAD_NBYTES, 2 * source.threads * max(view.place.piece_nbytes for view in views))
                step = max(1, len(rows) if on_host else upload // nbytes)
                for part, target in zip(views, values, strict=True):
                    for start in range(0, len(rows), step):
                        images = rows[start : start + step]
                        host = target if on_host else self._pool.take(len(images) * nbytes).view(len(images), nbytes)
                        for job in [readers.submit(job) for job in source.jobs(key, [part], images, None, host, stop)]:
                            job.result()
                        if not on_host:
                            target[start : start + step].copy_(host)
                self._values[key] = values.flatten(0, 1)
        long = [key for key, values in self._values.items() if values.shape[1] >= LONG_ROW]
        # Of others a device would take longer to fetch each than this process to gather them.
        self._fetched = {key for key in long if on_host and source.pool.pinned and pin(self._values[key])}
        weakref.finalize(self, unpin, [self._values[key].data_ptr() for key in self._fetched])

    def gather(self, rows: Tensor, view: Tensor | None = None) -> dict[Key, Tensor | PinnedRows]:
        """Bytes of some images, [B, row_nbytes] each; `rows` [B] int64 on the device, `view` [B] which view of each."""
        slots = self._slot[rows]
        view_slots = slots if view is None else slots + view * self._n
        batch: dict[Key, Tensor | PinnedRows] = {}
        for key, values in self._values.items():
            index = view_slots if len(values) > self._n else slots
            if self.device.type != "cpu":
                batch[key] = values.index_select(0, index)
                continue
            if key in self._fetched:
                batch[key] = PinnedRows(values, index)
                continue
            out = self._pool.take(len(index) * values.shape[1]).view(len(index), values.shape[1])
            batch[key] = torch.index_select(values, 0, index, out=out)
        return batch


class Lane:
    """A queue of a device's copies and decoding (a CUDA stream), parallel to that of the training loop, which it runs as well.

    Attributes:
        wait_s: seconds for which this process waited for the device.
    """

    wait_s = 0.0

    def __init__(self, device: torch.device):
        self.device, self._stream = device, torch.cuda.Stream(device)

    def work(self) -> AbstractContextManager[Any]:
        """What is asked of the device inside goes into this queue."""
        return torch.cuda.stream(self._stream)

    def copy(self, host: Tensor | PinnedRows) -> Tensor:
        """A copy on the device. It is made later: `host` must stay as it is until a `mark` after it is reached."""
        return host.to(self.device, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """The end of this queue at present."""
        return self._stream.record_event()

    def mark_of_loop(self) -> torch.cuda.Event:
        """The end of the training loop's queue at present."""
        return torch.cuda.current_stream(self.device).record_event()

    def hand_over(self, values: Iterable[Tensor], ready: torch.cuda.Event) -> None:
        """The training loop's queue waits for `ready`, and the memory of `values` is not used again before it is done."""
        loop = torch.cuda.current_stream(self.device)
        loop.wait_event(ready)
        for one in values:
            one.record_stream(loop)

    def wait(self) -> None:
        """Wait until this queue is empty."""
        self._stream.synchronize()

    def wait_for(self, mark: torch.cuda.Event) -> None:
        began = time.perf_counter()
        mark.synchronize()
        self.wait_s += time.perf_counter() - began


def batches_on_gpu(
    batches: Iterable[Mapping[Any, Tensor | PinnedRows]], lane: Lane, decode: Callable[[dict[Any, Tensor]], Batch]
) -> Generator[Batch, None, None]:
    """Move batches of host tensors (pinned: others are copied twice, and the loop waits) to a device and decode them there.

    No more than `AHEAD` host batches are held for their copies, and the training loop is never more than `AHEAD` batches
    ahead of the device: where nothing else makes it wait, its batches would fill the device's memory.
    A caller that stops early has to close the generator.
    """
    # Host memory must not be used again before it was copied.
    copying: deque[tuple[torch.cuda.Event, Mapping[Any, Tensor | PinnedRows]]] = deque()
    ready: deque[tuple[Batch, torch.cuda.Event]] = deque()
    in_use: deque[torch.cuda.Event] = deque()

    def hand_over() -> Batch:
        batch, mark = ready.popleft()
        lane.hand_over(batch.values(), mark)
        return batch

    def was_used() -> None:
        in_use.append(lane.mark_of_loop())
        if len(in_use) > AHEAD:
            lane.wait_for(in_use.popleft())

    try:
        for host in batches:
            with lane.work():
                on_device = {key: lane.copy(values) for key, values in host.items()}
                copying.append((lane.mark(), host))
                decoded = decode(on_device)
                ready.append((decoded, lane.mark()))
            del host, on_device, decoded
            while copying and (len(copying) > AHEAD or copying[0][0].query()):
                lane.wait_for(copying[0][0])
                copying.popleft()
            if len(ready) > AHEAD:
                yield hand_over()
                was_used()
        while ready:
            yield hand_over()
            was_used()
    finally:
        lane.wait()  # before `copying` lets go of the memory
