"""Batches of features in step, for training heads: from the device, from memory, or streamed from disk."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from store.codecs import SCALE, get_codec
from store.codecs.codec import Coded
from store.errors import StoreError
from store.format.array import ArrayReader, row_numbers
from store.loading.order import Order, random_views
from store.loading.placement import Placement, choose_placement
from store.loading.reading import (
    CACHED_READS,
    DISK_READS,
    WINDOWS,
    Lane,
    Pool,
    Resident,
    StoredArrays,
    batches_on_gpu,
    parts_of,
)

BUFFER_NBYTES = 256 << 20  # for streaming
BUFFER_BLOCKS = 128  # at least, so that a window mixes blocks from many places
Dtype = torch.dtype | Literal["stored"] | None  # of floating-point values in a batch


@dataclass
class Stats:
    """What the epochs since the last `reset` did."""

    n_batches: int = 0
    nbytes: int = 0  # stored bytes of the batches handed out
    wait_s: float = 0.0  # the consumer waited for data
    total_s: float = 0.0  # from asking for the first batch to the end
    device_wait_s: float = 0.0  # the consumer waited for its GPU, which had two batches to go

    def __str__(self) -> str:
        rate = self.nbytes / 1e9 / self.total_s if self.total_s else 0.0
        share = self.wait_s / self.total_s if self.total_s else 0.0
        device = f", {self.device_wait_s / self.total_s:.0%} for the GPU" if self.device_wait_s else ""
        return f"{rate:.2f} GB/s, {share:.0%} of the time waiting for data{device}"


class Loader:
    """Epochs over several arrays in step, batch by batch, on the target device.

    Args:
        arrays: name in the batch -> array, of one feature set or several; or a list of arrays, one for each view: each epoch
            then reads a random view of each image, the same one in all arrays that have views.
        labels: [N] or [N, C], handed out as `label`.
        rows: which images, all by default; leave out rows that are not valid.
        joined: name -> [N] row of that array for each image, where it is another set in another order (`store.join`).
        batch_size: images per batch; the last may be short.
        shuffle: a new order each epoch; else the order of `rows`.
        device: where batches are wanted.
        placement: "device", "memory", "stream", or "auto": the first that fits. `reason` says what was chosen and why.
        dtype: of floating arrays in a batch; None leaves them as their codec decodes them (float16 for float16), and with
            "stored" int8, int4 and bfloat16 come as `Coded`, a tensor that is decoded when it is used.
        block_rows: neighbours that stay together when streaming; by default as many as make a MiB, or 8 MiB where each
            block is a request to an object store. Equal blocks and buffers give equal epochs, wherever the set is.
        buffer_nbytes: memory for streaming, 256 MiB by default, and 1 GiB where blocks are 8 MiB. A third of it is the window
            in which rows are mixed, a batch at least.
        threads: number of threads that read, each one piece at a time; by default 16, 4 to 8 where files are in the page cache
            and cores bind, or as many as an object store wants.
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
        arrays: Mapping[str, ArrayReader | Sequence[ArrayReader]],
        labels: np.ndarray,
        rows: np.ndarray | None = None,
        batch_size: int = 1024,
        shuffle: bool = True,
        device: str | torch.device = "cpu",
        placement: Placement = "auto",
        *,
        joined: Mapping[str, np.ndarray] | None = None,
        dtype: Dtype = torch.float32,
        block_rows: int | None = None,
        buffer_nbytes: int | None = None,
        threads: int | None = None,
        direct: bool | None = None,
        rank: int = 0,
        world_size: int = 1,
    ):
        self._views = {name: [a] if isinstance(a, ArrayReader) else list(a) for name, a in arrays.items()}
        self.arrays, self.joined = {name: views[0] for name, views in self._views.items() if views}, dict(joined or {})
        self.rows = np.arange(len(labels)) if rows is None else row_numbers(rows)
        self._check(labels, batch_size, rank, world_size)
        self.batch_size, self.device, self.dtype, self.direct = batch_size, torch.device(device), dtype, direct
        self.labels = torch.from_numpy(np.asarray(labels))
        self.stats = Stats()
        self.n_views = max(map(len, self._views.values()))
        self.nbytes = sum(views[0].layout.row_nbytes for views in parts_of(self._views).values()) * len(self.rows)
        self.places, self.reason = choose_placement(self._views, len(self.rows), self.device, placement)
        streamed = [self.arrays[name] for name, where in self.places.items() if where == "stream"]
        widest = max(streamed or self.arrays.values(), key=lambda array: array.nbytes)
        self.placement = self.places[next(name for name, array in self.arrays.items() if array is widest)]
        requests = max(array.place.requests for views in self._views.values() for array in views)
        if requests == 1:
            requests = CACHED_READS if direct is False or (direct is None and widest.is_cached()) else DISK_READS
        self.threads = threads or requests
        if buffer_nbytes is None:
            buffer_nbytes = max(BUFFER_NBYTES, BUFFER_BLOCKS * (widest.place.block_nbytes or 0))
        batch_nbytes = sum(part.layout.row_nbytes for array in streamed for part in (array, array.scale) if part) * batch_size
        window = buffer_nbytes // WINDOWS // max(1, batch_nbytes) if streamed and shuffle else 1
        self.order = Order(
            self.rows,
            widest.layout.shard_rows,
            # Fully shuffled where rows need not be read one after the other.
            (block_rows or widest.block_rows) if streamed else 1,
            max(1, window) * batch_size if streamed else max(1, len(self.rows)),
            shuffle,
            rank,
            world_size,
        )
        self.n_rows = self.order.n_rows
        self._load()

    def _check(self, labels: np.ndarray, batch_size: int, rank: int, world_size: int) -> None:
        if not self._views:
            raise StoreError("a loader needs at least one array; give e.g. {'patch': store.tokens('patch')}")
        if batch_size < 1:
            raise StoreError(f"batch_size is {batch_size}, expected 1 or more")
        if not 0 <= rank < world_size:
            raise StoreError(f"rank is {rank}, expected 0 to {world_size - 1} (world_size is {world_size})")
        if len(self.rows) and (self.rows.min() < 0 or self.rows.max() >= len(labels)):
            raise StoreError(f"rows {self.rows.min()} to {self.rows.max()} are asked for, but there are {len(labels)} labels")
        counts = {len(views) for views in self._views.values()}
        if 0 in counts or len(counts - {1}) > 1:
            counted = ", ".join(f"{name} has {len(views)}" for name, views in self._views.items())
            raise StoreError(f"arrays have different numbers of views ({counted}); give as many of each, or one")
        for views in self._views.values():
            if different := [view for view in views[1:] if view.layout.shape != views[0].layout.shape]:
                raise StoreError(f"{different[0].name} has another shape than {views[0].name}; are they views of one array?")
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
        """What another process needs to make the same loader; resident features are read again there."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_pool", "_resident", "_stream")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._load()

    def epoch(self, seed: int = 0, start: int = 0) -> Iterator[dict[str, Tensor]]:
        """One pass, or its rest from batch `start` on; `seed` fixes the order.

        Batches hold the arrays [B, ...], `label` [B, ...] and `row` [B] int64, the row of each image.
        """
        began, row_nbytes = time.perf_counter(), self.nbytes // max(1, len(self.rows))
        stored = self._stored_batches(seed, start)
        # Features on the device are there already; all others are copied to a GPU on a separate stream.
        copied = self.device.type == "cuda" and "device" not in self.places.values()
        lane = Lane(self.device) if copied else None
        on_gpu = None if lane is None else batches_on_gpu(stored, lane, self._decode)
        batches: Iterator[dict[str, Tensor]] = map(self._decode, stored) if on_gpu is None else on_gpu
        try:
            for batch in batches:
                self.stats.n_batches += 1
                self.stats.nbytes += len(batch["row"]) * row_nbytes
                yield batch
                del batch  # or its memory would not be free when the next one needs it
        finally:
            if on_gpu is not None and lane is not None:
                on_gpu.close()
                self.stats.device_wait_s += lane.wait_s
            stored.close()
            self.stats.total_s += time.perf_counter() - began
            if self._stream is not None:
                self.stats.wait_s, self._stream.wait_s = self.stats.wait_s + self._stream.wait_s, 0.0

    def _stored_batches(self, seed: int, start: int) -> Generator[dict[Any, Any], None, None]:
        """Batches as they are stored: bytes [B, row_nbytes] by (name, part), `label` and `row`; where they are kept."""
        view = self.views_of(seed)
        if self._stream is None:
            assert self._resident is not None
            home = self._resident.device
            labels, visited = self.labels.to(home), torch.from_numpy(self.order.visited(seed)).to(home)
            view = None if view is None else view.to(home)
            for rows in visited.split(self.batch_size)[start:] if len(visited) else ():
                kept = self._resident.gather(rows, None if view is None else view[rows])
                yield {**kept, "label": self._pinned(labels[rows]), "row": self._pinned(rows)}
                del kept
            return
        size, skip = self.order.window_rows, start * self.batch_size
        reading = self.order.reading(seed)
        numbers = range(skip // size, -(-len(reading) // size))
        rows_of_windows = (self.order.window(seed, i, reading[i * size : (i + 1) * size]) for i in numbers)
        windows = self._stream.windows(rows_of_windows, None if view is None else view.numpy())
        with closing(windows):
            for window, targets in windows:
                for begin in range(skip % size, len(window), self.batch_size):
                    rows = torch.from_numpy(window[begin : begin + self.batch_size])
                    batch: dict[Any, Any] = {key: t[begin : begin + self.batch_size] for key, t in targets.items()}
                    if self._resident is not None:
                        batch |= self._resident.gather(rows, None if view is None else view[rows])
                    yield {**batch, "label": self._pinned(self.labels[rows]), "row": self._pinned(rows)}
                    del batch
                skip = 0
                del targets

    def _pinned(self, values: Tensor) -> Tensor:
        """The same values where a device copies from by itself, if that is wanted."""
        if not self._pool.pinned or values.device.type != "cpu":
            return values
        return self._pool.take(values.nbytes).view(values.dtype).view(values.shape).copy_(values)

    def views_of(self, seed: int) -> Tensor | None:
        """[N] int64: which view of each image an epoch reads, fixed by its seed; None where there is one view."""
        return torch.from_numpy(random_views(seed, self.n_views, len(self.labels))) if self.n_views > 1 else None

    def _decode(self, stored: dict[Any, Tensor]) -> dict[str, Tensor]:
        values = {
            name: decode_rows(array, stored[name, ""], stored.get((name, SCALE)), self.dtype, self._pool)
            for name, array in self.arrays.items()
        }
        return {**values, "label": stored["label"], "row": stored["row"]}

    def _load(self) -> None:
        """Read the resident features, and be ready to stream the rest."""
        self._pool = Pool(pinned=self.device.type == "cuda")
        parts = parts_of(self._views)
        streamed = {key: part for key, part in parts.items() if self.places[key[0]] == "stream"}
        resident = {key: part for key, part in parts.items() if key not in streamed}
        home = self.device if "device" in self.places.values() else torch.device("cpu")
        stream, kept = (StoredArrays(p, self.joined, self._pool, self.threads, self.direct) for p in (streamed, resident))
        self._stream = stream if streamed else None
        self._resident = Resident(kept, self.rows, len(self.labels), home) if resident else None


def decode_rows(array: ArrayReader, main: Tensor, scale: Tensor | None, dtype: Dtype, pool: Pool) -> Tensor:
    """Values [B, ...] of stored rows, on their device.

    Args:
        main: [B, row_nbytes] uint8; `scale` the same, of the array's scales.
        dtype: of floating-point values; None leaves that of the codec, and "stored" leaves values that its codec would have to
            compute to whoever uses them: they are `Coded`.
        pool: for memory on the CPU, where fresh memory is slow.
    """
    codec = get_codec(array.layout.codec) if array.layout.codec is not None else None
    values = _as_rows(main, codec.stored if codec else None, array)
    if codec:
        parts = {"": values}
        if scale is not None and array.scale is not None:
            parts[SCALE] = _as_rows(scale, None, array.scale)
        if dtype == "stored" and codec.decodes_fast and codec.decoded != codec.stored:
            return Coded(codec, parts)
        values = codec.decode(parts)
    if dtype is None or dtype == "stored" or not values.is_floating_point() or values.dtype == dtype:
        return values
    if values.device.type != "cpu":
        return values.to(dtype)
    return pool.take(values.numel() * dtype.itemsize).view(dtype).view(values.shape).copy_(values)


def _as_rows(stored: Tensor, dtype: torch.dtype | None, array: ArrayReader) -> Tensor:
    return stored.view(dtype or getattr(torch, array.layout.dtype)).view(len(stored), *array.layout.shape[1:])
