"""Batches of features in step, for training heads: from the device, from memory, or streamed from disk."""

import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from store.array import ArrayReader
from store.buffers import Pool
from store.codecs import SCALE, get_codec
from store.errors import StoreError
from store.folder import Local
from store.gpu import on_gpu
from store.order import Order, shuffle_quality
from store.placement import Placement, place
from store.scatter import scatters

WINDOWS = 3  # in memory: one that is consumed, one that comes next, one that is begun while that is awaited


@dataclass
class Stats:
    """What the epochs since the last `reset` did."""

    n_batches: int = 0
    nbytes: int = 0  # stored bytes of the batches handed out
    wait_s: float = 0.0  # the consumer waited for data
    total_s: float = 0.0  # from asking for the first batch to the end

    def __str__(self) -> str:
        rate = self.nbytes / 1e9 / self.total_s if self.total_s else 0.0
        share = self.wait_s / self.total_s if self.total_s else 0.0
        return f"{rate:.2f} GB/s, {share:.0%} of the time waiting for data"


class Loader:
    """Epochs over several arrays in step, batch by batch, on the target device.

    Args:
        arrays: name in the batch -> array, of one feature set or several.
        labels: [N] or [N, C], handed out as `label`.
        rows: which images, all by default; rows that are not valid belong left out here.
        joined: name -> [N] row of that array for each image, where it is another set in another order (`store.join`).
        batch_size: images per batch; the last may be short.
        shuffle: a new order each epoch; else the order of `rows`.
        device: where batches are wanted.
        placement: "device", "memory", "stream", or "auto": the first that fits. `reason` says what was chosen and why.
        dtype: of floating arrays in a batch; None leaves them as their codec gives them (float16 for float16).
        block_rows: neighbours that stay together when streaming; by default as many as make a MiB.
        buffer_nbytes: memory for streaming. A third of it is the window in which rows are mixed, a batch at least.
        shards_at_once: shards that are mixed when streaming; all by default.
        threads: that read.
        direct: bypass the page cache; by default for files that are not in it.
        rank, world_size: this process reads its own shards; all ranks get equally many batches.

    Attributes:
        placement: of the largest array.
        stats: of the epochs so far.

    Raises:
        StoreError: arrays, labels and rows that do not fit together, more ranks than shards, an unknown placement.
    """

    def __init__(
        self,
        arrays: Mapping[str, ArrayReader],
        labels: np.ndarray,
        rows: np.ndarray | None = None,
        batch_size: int = 1024,
        shuffle: bool = True,
        device: str | torch.device = "cpu",
        placement: Placement = "auto",
        *,
        joined: Mapping[str, np.ndarray] | None = None,
        dtype: torch.dtype | None = torch.float32,
        block_rows: int | None = None,
        buffer_nbytes: int = 256 << 20,
        shards_at_once: int | None = None,
        threads: int | None = None,
        direct: bool | None = None,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.arrays, self.joined = dict(arrays), dict(joined or {})
        self.rows = np.arange(len(labels)) if rows is None else np.asarray(rows)
        if not len(self.rows):
            self.rows = self.rows.astype(np.int64)  # an empty list has no type of its own
        self._check(labels, batch_size, rank, world_size)
        self.batch_size, self.device, self.dtype, self.direct = batch_size, torch.device(device), dtype, direct
        self.labels = torch.from_numpy(np.asarray(labels))
        self.stats = Stats()
        self._parts = {(name, end): part for name, array in self.arrays.items() for end, part in _parts(array)}
        self.nbytes = sum(p.layout.row_nbytes for p in self._parts.values()) * len(self.rows)
        self.places, self.reason = place(self.arrays, len(self.rows), self.device, placement)
        streamed = [self.arrays[name] for name, where in self.places.items() if where == "stream"]
        widest = max(streamed or self.arrays.values(), key=lambda array: array.nbytes)
        self.placement = self.places[next(name for name, array in self.arrays.items() if array is widest)]
        remote = any(not isinstance(array.folder, Local) for array in streamed)
        self.threads = threads or (16 if remote else min(8, max(4, (os.cpu_count() or 2) // 2)))
        per_row = sum(p.layout.row_nbytes for (n, _), p in self._parts.items() if self.places[n] == "stream")
        window = buffer_nbytes // WINDOWS // max(1, per_row * batch_size) if streamed and shuffle else 1
        self.order = Order(
            self.rows,
            widest.layout.shard_rows,
            # Fully shuffled where rows need not be read one behind the other.
            (block_rows or min(widest.piece_rows, 32)) if streamed else 1,
            max(1, window) * batch_size if streamed else max(1, len(self.rows)),
            shuffle,
            shards_at_once if streamed else None,
            rank,
            world_size,
        )
        self.n_rows = self.order.n_rows
        self._pool = Pool(pinned=self.device.type == "cuda")
        self._at: dict[str, Any] = {"seed": 0, "batch": 0}
        self._resident: dict[tuple[str, str], Tensor] = {}
        self._slot = np.full(len(labels), -1, np.int64)
        self._slot[self.rows.astype(np.int64)] = np.arange(len(self.rows))  # where a row stands in what is resident
        self._load()

    def _check(self, labels: np.ndarray, batch_size: int, rank: int, world_size: int) -> None:
        if not self.arrays:
            raise StoreError("a loader needs at least one array; give e.g. {'patch': store.tokens('patch')}")
        if batch_size < 1:
            raise StoreError(f"batch_size is {batch_size}, expected 1 or more")
        if not 0 <= rank < world_size:
            raise StoreError(f"rank is {rank}, expected 0 to {world_size - 1} (world_size is {world_size})")
        if len(self.rows) and self.rows.dtype.kind not in "iu":
            raise StoreError(f"row numbers are expected, {self.rows.dtype} given; of a mask, take np.flatnonzero")
        if len(self.rows) and (self.rows.min() < 0 or self.rows.max() >= len(labels)):
            raise StoreError(f"rows {self.rows.min()} to {self.rows.max()} are asked for, but there are {len(labels)} labels")
        for name, array in self.arrays.items():
            n = len(self.joined[name]) if name in self.joined else array.shape[0]
            if n != len(labels):
                raise StoreError(f"{array.name} has {n} rows, but there are {len(labels)} labels; use those of its set")
            lacking = self.rows[self.joined[name][self.rows] < 0] if name in self.joined else self.rows[:0]
            if len(lacking):
                raise StoreError(
                    f"{array.name} lacks {len(lacking)} of the images, first that of row {lacking[0]}; "
                    "leave out rows that are -1"
                )
        shard_rows = next(iter(self.arrays.values())).layout.shard_rows
        if world_size > 1 and world_size > (n_shards := len(np.unique(self.rows // shard_rows))):
            raise StoreError(
                f"{world_size} ranks, but only {n_shards} shards to share; "
                "use fewer ranks, or extract with smaller --shard-rows"
            )

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-self.n_rows // self.batch_size)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to make the same loader; what is resident is read again there."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_pool", "_resident")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pool, self._resident = Pool(pinned=self.device.type == "cuda"), {}
        self._load()

    def shuffle_quality(self, seed: int = 0) -> dict[str, float]:
        """How well an epoch mixes the rows, as shares of a full shuffle (`store.order.shuffle_quality`)."""
        return shuffle_quality(self.order.visited(seed))

    @property
    def state(self) -> dict[str, Any]:
        """Where the running epoch stands: `resume` goes on with the batch after the last one handed out."""
        return dict(self._at)

    def resume(self, state: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
        """The rest of an epoch, from a `state`.

        Raises: StoreError: the state is not one of this loader's.
        """
        try:
            seed, batch = int(state["seed"]), int(state["batch"])
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{state!r} is no state of a loader; expected seed and batch") from error
        if not 0 <= batch <= len(self):
            raise StoreError(f"the state is at batch {batch}, but there are {len(self)}; it belongs to another loader")
        return self.epoch(seed, batch)

    def epoch(self, seed: int = 0, start: int = 0) -> Iterator[dict[str, Tensor]]:
        """One pass, or its rest from batch `start` on; `seed` fixes the order.

        Batches hold the arrays [B, ...], `label` [B, ...] and `row` [B] int64, the row of each image.
        """
        self._at = {"seed": seed, "batch": start}
        began = time.perf_counter()
        host = self._host_batches(seed, start)
        batches = on_gpu(host, self.device, self._decoded) if self.device.type == "cuda" else map(self._decoded, host)
        try:
            for batch in batches:
                self._at["batch"] += 1
                self.stats.n_batches += 1
                self.stats.nbytes += len(batch["row"]) * sum(p.layout.row_nbytes for p in self._parts.values())
                yield batch
                del batch  # or its memory would not be free when the next one needs it
        finally:
            host.close()
            self.stats.total_s += time.perf_counter() - began

    # -- batches of stored bytes on the host --------------------------------------------------------------------------

    def _host_batches(self, seed: int, start: int) -> Generator[dict[Any, Tensor], None, None]:
        """Batches as they are stored: (name, part) -> uint8 or stored tensors on host or device, `row`, `label`."""
        reading, size = self.order.reading(seed), self.order.window_rows
        first = start * self.batch_size // size
        numbers = range(first, -(-len(reading) // size))
        windows = (self.order.window(seed, i, reading[i * size : (i + 1) * size]) for i in numbers)
        streamed = {key: part for key, part in self._parts.items() if self.places[key[0]] == "stream"}
        stop = threading.Event()
        with ThreadPoolExecutor(self.threads, "beyondcls-loader") as readers:
            ahead: deque[tuple[np.ndarray, dict[Any, Tensor], list[Future[None]]]] = deque()

            def submit() -> None:
                for rows in islice(windows, 1):
                    targets, futures = {}, []
                    for key, part in streamed.items():
                        targets[key] = self._pool.take(len(rows) * part.layout.row_nbytes)
                        jobs = scatters(part, self._rows_of(key[0], rows), targets[key], self.direct, stop)
                        futures += [readers.submit(job) for job in jobs]
                    ahead.append((rows, targets, futures))

            try:
                submit()
                skip = start - first * size // self.batch_size
                while ahead:
                    rows, targets, futures = ahead.popleft()
                    submit()
                    self._wait(futures)
                    for begin in range(skip * self.batch_size, len(rows), self.batch_size):
                        part = rows[begin : begin + self.batch_size]
                        batch = {key: t.view(len(rows), -1)[begin : begin + len(part)] for key, t in targets.items()}
                        yield self._with_resident(batch, part)
                        del batch
                    skip = 0
                    del targets
            finally:
                stop.set()
                readers.shutdown(wait=True, cancel_futures=True)

    def _rows_of(self, name: str, rows: np.ndarray) -> np.ndarray:
        return self.joined[name][rows] if name in self.joined else rows

    def _wait(self, futures: Iterable[Future[None]]) -> None:
        began = time.perf_counter()
        with record_function("beyondcls.loader.wait"):
            for future in futures:
                future.result()
        self.stats.wait_s += time.perf_counter() - began

    def _with_resident(self, batch: dict[Any, Tensor], rows: np.ndarray) -> dict[Any, Tensor]:
        """Add what is resident, the labels and the rows themselves."""
        index = torch.from_numpy(self._slot[rows])
        for key, values in self._resident.items():
            if values.device.type == "cpu":
                out = self._pool.take(len(rows) * values.shape[1]).view(len(rows), -1)
                batch[key] = torch.index_select(values, 0, index, out=out)
            else:
                batch[key] = values.index_select(0, index.to(values.device, non_blocking=True))
        row = torch.from_numpy(rows)
        return {**batch, "label": self.labels[row], "row": row}

    # -- from stored bytes to values ----------------------------------------------------------------------------------

    def _decoded(self, batch: dict[Any, Tensor]) -> dict[str, Tensor]:
        """Values of a batch, in `dtype`, on the device it is on."""
        out = {"label": batch["label"], "row": batch["row"]}
        for name, array in self.arrays.items():
            layout = array.layout
            shape = (len(batch["row"]), *layout.shape[1:])
            if layout.codec is None:
                out[name] = self._cast(batch[name, ""].view(getattr(torch, layout.dtype)).view(shape))
                continue
            codec = get_codec(layout.codec)
            parts = {"": batch[name, ""].view(codec.stored).view(shape)}
            if array.scale is not None:
                scale = array.scale.layout
                parts[SCALE] = batch[name, SCALE].view(getattr(torch, scale.dtype)).view(len(batch["row"]), *scale.shape[1:])
            out[name] = self._cast(codec.decode(parts) if codec.decoded != codec.stored or array.scale else parts[""])
        return out

    def _cast(self, values: Tensor) -> Tensor:
        if self.dtype is None or not values.is_floating_point() or values.dtype == self.dtype:
            return values
        if values.device.type != "cpu":
            return values.to(self.dtype)
        out = self._pool.take(values.numel() * self.dtype.itemsize).view(self.dtype).view(values.shape)
        return out.copy_(values)

    # -- what stays resident ------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Read what is kept in memory or on the device, once."""
        resident = {key: part for key, part in self._parts.items() if self.places[key[0]] != "stream"}
        if not resident:
            return
        stop = threading.Event()
        with ThreadPoolExecutor(self.threads, "beyondcls-loader") as readers:
            for key, part in resident.items():
                on_gpu = self.places[key[0]] == "device"
                rows, nbytes = self._rows_of(key[0], self.rows), part.layout.row_nbytes
                values = torch.empty(len(rows), nbytes, dtype=torch.uint8, device=self.device if on_gpu else "cpu")
                step = max(1, (64 << 20) // nbytes) if on_gpu else max(1, len(rows))
                for start in range(0, len(rows), step):
                    chosen = rows[start : start + step]
                    host = torch.empty(len(chosen), nbytes, dtype=torch.uint8) if on_gpu else values
                    self._wait([readers.submit(job) for job in scatters(part, chosen, host, self.direct, stop)])
                    if on_gpu:
                        values[start : start + step] = host.to(self.device)
                self._resident[key] = values


def _parts(array: ArrayReader) -> list[tuple[str, ArrayReader]]:
    """An array and its scales, by what their names end with."""
    return [("", array), *([(SCALE, array.scale)] if array.scale is not None else [])]
