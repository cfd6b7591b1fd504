"""Reading rows of an array to their places in a buffer, in the order of the disk, by several threads."""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from store.format.array import ArrayReader
from store.loading.loader import Key
from store.places.place import ALIGNMENT, aligned_memory, aligned_zeros, scratch

LONG_ROW = 1 << 14  # bytes
DISK_READS = 16  # of a disk in flight: some disks are not at full speed with fewer
CACHED_READS = min(8, max(4, (os.cpu_count() or 2) // 2))  # of the page cache: more threads take turns
RUNS = 4  # runs that a thread reads from a disk before it takes the next job: handing over costs time
UPLOAD_NBYTES = 64 << 20  # read before it is copied to the device, at least
WINDOWS = 3  # in memory: one being consumed, the next, and one begun while that is awaited


@dataclass(frozen=True)
class Scatter:
    """A job: reads some runs of neighbouring rows, and puts each row where it belongs."""

    array: ArrayReader
    target: np.ndarray  # [n, row_nbytes] uint8
    rows: np.ndarray  # [n] ascending
    places: np.ndarray  # [n] row of `target` for each of them
    runs: list[tuple[int, int]]  # ranges of `rows`
    direct: bool | None
    stop: threading.Event

    def __call__(self) -> None:
        for start, stop in self.runs:
            if self.stop.is_set():
                return
            first, last = int(self.rows[start]), int(self.rows[stop - 1])
            if self._read_in_place(start, stop, first, last):
                continue
            memory = scratch(self.array.scratch_nbytes(self.array.piece_rows))
            fetched = np.frombuffer(self.array.fetch(first, last + 1, memory, self.direct), np.uint8)
            block = fetched.reshape(-1, self.array.layout.row_nbytes)
            self.target[self.places[start:stop]] = block if len(block) == stop - start else block[self.rows[start:stop] - first]

    def _read_in_place(self, start: int, stop: int, first: int, last: int) -> bool:
        """Read a run straight to its places, where rows are long enough for that to be cheaper than a copy."""
        if self.array.layout.row_nbytes < LONG_ROW or last - first + 1 != stop - start:
            return False
        views = [memoryview(self.target[place]) for place in self.places[start:stop].tolist()]
        return self.array.fetch_into(first, last + 1, views, self.direct)


def scatters(
    views: Sequence[ArrayReader],
    rows: np.ndarray,
    view: np.ndarray | None,
    target: Tensor,
    direct: bool | None,
    stop: threading.Event,
) -> Iterator[Scatter]:
    """Jobs that together read `rows` (stored bytes) into `target` [n · row_nbytes] uint8, in the order of `rows`.

    Args:
        views: the array, or one for each view.
        view: [n] which of them to read for each row; the first by default.
    """
    flat = target.numpy().reshape(len(rows), -1)
    for number, array in enumerate(views if view is not None else views[:1]):
        places = np.argsort(rows, kind="stable")
        if view is not None:
            places = places[view[places] == number]
        ordered = rows[places]
        runs = list(array.runs(ordered))
        step = max(1, min(RUNS, -(-len(runs) // DISK_READS))) if array.place.requests == 1 else 1
        for i in range(0, len(runs), step):
            yield Scatter(array, flat, ordered, places, runs[i : i + step], direct, stop)


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
        weakref.finalize(view, _give_back, free, memory).atexit = False
        return torch.from_numpy(view)

    def _make(self, nbytes: int) -> object:
        self.n_made += 1
        if not self.pinned:
            return aligned_memory(nbytes)
        raw = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, pin_memory=True).numpy()
        skip = -raw.ctypes.data % ALIGNMENT
        return raw[skip : skip + nbytes]


def _give_back(free: list[object], memory: object) -> None:
    free.append(memory)


class Resident:
    """Some rows of stored arrays, as bytes.

    Args:
        parts: stored arrays, one for each view; `rows_in` [N] gives the row of each image where that is not its number.
        rows: images that are kept.
        n: images of the set, N.
        device: where they are kept.
        pool: memory for the batches of `gather`, and for copies to the device.
    """

    def __init__(
        self,
        parts: Mapping[Key, Sequence[ArrayReader]],
        rows_in: Mapping[str, np.ndarray],
        rows: np.ndarray,
        n: int,
        device: torch.device,
        pool: Pool,
        threads: int,
        direct: bool | None,
    ):
        self.device, self._pool, self._n = device, pool, len(rows)
        slot = np.full(n, -1, np.int64)
        slot[rows] = np.arange(len(rows))
        self._slot = torch.from_numpy(slot).to(device)  # position of an image among those that are kept
        stop = threading.Event()
        self._values: dict[Key, Tensor] = {}
        with ThreadPoolExecutor(threads, "beyondcls-loader") as readers:
            for key, views in parts.items():
                nbytes, array_rows = views[0].layout.row_nbytes, rows_in[key[0]][rows] if key[0] in rows_in else rows
                values = _empty((len(views), len(rows), nbytes), device)
                step = max(1, len(rows) if device.type == "cpu" else _upload_nbytes(views, threads) // nbytes)
                for part, target in zip(views, values, strict=True):
                    for start in range(0, len(rows), step):
                        step_rows = array_rows[start : start + step]
                        on_host = device.type == "cpu"
                        host = target if on_host else pool.take(len(step_rows) * nbytes).view(len(step_rows), nbytes)
                        for job in [readers.submit(job) for job in scatters([part], step_rows, None, host, direct, stop)]:
                            job.result()
                        if not on_host:
                            target[start : start + step].copy_(host)
                self._values[key] = values.flatten(0, 1)

    def gather(self, rows: Tensor, view: Tensor | None = None) -> dict[Key, Tensor]:
        """Bytes of some images, [B, row_nbytes] each; `rows` [B] int64 on the device, `view` [B] which view of each."""
        slots = self._slot[rows]
        view_slots = slots if view is None else slots + view * self._n
        batch = {}
        for key, values in self._values.items():
            index = view_slots if len(values) > self._n else slots
            if self.device.type != "cpu":
                batch[key] = values.index_select(0, index)
                continue
            out = self._pool.take(len(index) * values.shape[1]).view(len(index), values.shape[1])
            batch[key] = torch.index_select(values, 0, index, out=out)
        return batch


def _empty(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """[…] uint8; on the CPU page-aligned, so that rows are read straight to their places."""
    if device.type == "cpu":
        return torch.from_numpy(aligned_zeros(shape, np.uint8))
    return torch.empty(shape, dtype=torch.uint8, device=device)


def _upload_nbytes(views: Sequence[ArrayReader], threads: int) -> int:
    """Read before it is copied to the device: enough to keep all threads busy."""
    return max(UPLOAD_NBYTES, 2 * threads * max(view.place.piece_nbytes for view in views))


class Stream:
    """Reads windows of rows of stored arrays, by several threads.

    Attributes:
        wait_s: seconds for which the consumer had to wait.
    """

    def __init__(
        self,
        parts: Mapping[Key, Sequence[ArrayReader]],
        rows_in: Mapping[str, np.ndarray],
        pool: Pool,
        threads: int,
        direct: bool | None,
    ):
        self._parts, self._rows_in, self._pool, self._threads, self._direct = parts, rows_in, pool, threads, direct
        self.wait_s = 0.0

    def windows(
        self, windows: Iterable[np.ndarray], view: np.ndarray | None = None
    ) -> Generator[tuple[np.ndarray, dict[Key, Tensor]], None, None]:
        """Each window's rows, and their bytes [rows, row_nbytes]. A caller that stops early has to close the generator.

        Args:
            view: [N] which view of each image to read; the first by default.
        """
        remaining, stop = iter(windows), threading.Event()
        ahead: deque[tuple[np.ndarray, dict[Key, Tensor], list[Future[None]]]] = deque()
        with ThreadPoolExecutor(self._threads, "beyondcls-loader") as readers:

            def begin_next() -> None:
                for rows in islice(remaining, 1):
                    targets, jobs = {}, []
                    for key, views in self._parts.items():
                        target = self._pool.take(len(rows) * views[0].layout.row_nbytes).view(len(rows), -1)
                        array_rows = self._rows_in[key[0]][rows] if key[0] in self._rows_in else rows
                        view_of = view[rows] if view is not None and len(views) > 1 else None
                        jobs += [
                            readers.submit(job) for job in scatters(views, array_rows, view_of, target, self._direct, stop)
                        ]
                        targets[key] = target
                    ahead.append((rows, targets, jobs))

            try:
                begin_next()
                while ahead:
                    rows, targets, jobs = ahead.popleft()
                    begin_next()
                    self._wait(jobs)
                    yield rows, targets
                    del targets  # its memory is free again once the consumer's batches are gone
            finally:
                stop.set()
                readers.shutdown(wait=True, cancel_futures=True)

    def _wait(self, jobs: Iterable[Future[None]]) -> None:
        began = time.perf_counter()
        with record_function("beyondcls.loader.wait"):
            for job in jobs:
                job.result()
        self.wait_s += time.perf_counter() - began
