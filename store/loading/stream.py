"""Features that are read from disk as they are needed, some windows of rows ahead."""

import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np
from torch import Tensor
from torch.profiler import record_function

from store.format.array import ArrayReader
from store.loading.buffers import Pool
from store.loading.decode import Key
from store.loading.scatter import scatters

WINDOWS = 3  # in memory: one being consumed, the next, and one begun while that is awaited


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
