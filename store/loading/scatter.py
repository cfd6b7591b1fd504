"""Reading rows of an array to their places in a buffer, in the order of the disk, by several threads."""

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from store.format.array import ArrayReader
from store.places.aligned import scratch

LONG_ROW = 1 << 14  # bytes
DISK_READS = 16  # of a disk in flight: some disks are not at full speed with fewer
CACHED_READS = min(8, max(4, (os.cpu_count() or 2) // 2))  # of the page cache: more threads take turns
RUNS = 4  # runs that a thread reads from a disk before it takes the next job: handing over costs time


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
