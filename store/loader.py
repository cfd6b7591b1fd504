"""Batches of features in step, for training a head: resident in memory when they fit, else streamed."""

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from store.array import ArrayReader
from store.errors import StoreError

Placement = Literal["auto", "memory", "stream"]


class Loader:
    """Epochs over several arrays of one feature set, batch by batch, on the target device.

    "memory" holds the arrays on the device in their stored dtype and shuffles fully. "stream" reads blocks of
    `block_rows` neighbouring rows in shuffled order, one batch ahead in a thread, and shuffles inside a batch. "auto" takes
    memory when the arrays are below half of what is free there.

    Args:
        arrays: name in the batch -> array; all have one row per image.
        labels: [N] int64, handed out as `label`.
        rows: which images, all by default; rows that are not valid belong left out here.

    Raises:
        StoreError: arrays and labels of different length.
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
        block_rows: int = 32,
    ):
        for array in arrays.values():
            if array.shape[0] != len(labels):
                raise StoreError(
                    f"{array.name} has {array.shape[0]} rows, but there are {len(labels)} labels; use those of its set"
                )
        self.arrays, self.batch_size, self.shuffle, self.block_rows = dict(arrays), batch_size, shuffle, block_rows
        self.rows = np.arange(len(labels)) if rows is None else np.asarray(rows)
        self.labels = torch.from_numpy(labels)
        self.device = torch.device(device)
        self.nbytes = sum(a.layout.row_nbytes for a in self.arrays.values()) * len(self.rows)
        self.placement = (
            placement if placement != "auto" else "memory" if self.nbytes < free_memory(self.device) / 2 else "stream"
        )
        self._resident: dict[str, Tensor] = {}
        if self.placement == "memory":
            self._resident = {name: torch.from_numpy(a.rows(self.rows)).to(self.device) for name, a in self.arrays.items()}
            self._resident["label"] = self.labels[self.rows].to(self.device)

    def __len__(self) -> int:
        """Batches in an epoch; the last may be short."""
        return -(-len(self.rows) // self.batch_size)

    def epoch(self, seed: int = 0) -> Iterator[dict[str, Tensor]]:
        """One pass; `seed` fixes the order. Floating tensors come as float32, `label` as int64."""
        generator = np.random.default_rng(seed)
        batches = self._from_memory(generator) if self.placement == "memory" else self._from_disk(generator)
        for batch in batches:
            yield {name: t.float() if t.is_floating_point() else t for name, t in batch.items()}

    def _from_memory(self, generator: np.random.Generator) -> Iterator[dict[str, Tensor]]:
        n = len(self.rows)
        order = torch.from_numpy(generator.permutation(n) if self.shuffle else np.arange(n)).to(self.device)
        for chosen in order.split(self.batch_size) if n else ():
            yield {name: values[chosen] for name, values in self._resident.items()}

    def _from_disk(self, generator: np.random.Generator) -> Iterator[dict[str, Tensor]]:
        rows = self.rows
        if self.shuffle:
            blocks = np.split(np.sort(rows), range(self.block_rows, len(rows), self.block_rows))
            rows = np.concatenate([blocks[i] for i in generator.permutation(len(blocks))])
        ahead: queue.Queue[dict[str, Tensor] | BaseException | None] = queue.Queue(maxsize=2)
        stop = threading.Event()

        def put(item: dict[str, Tensor] | BaseException | None) -> None:
            while not stop.is_set():
                try:
                    ahead.put(item, timeout=0.1)
                    return
                except queue.Full:
                    continue

        def read() -> None:
            try:
                for start in range(0, len(rows), self.batch_size):
                    if stop.is_set():
                        return
                    part = rows[start : start + self.batch_size]
                    batch = {name: torch.from_numpy(a.rows(part)) for name, a in self.arrays.items()}
                    put({**batch, "label": self.labels[part]})
                put(None)
            except BaseException as error:  # handed to the consumer, which raises it
                put(error)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            while (item := ahead.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                order = torch.from_numpy(generator.permutation(len(item["label"]))) if self.shuffle else slice(None)
                yield {name: values[order].to(self.device, non_blocking=True) for name, values in item.items()}
        finally:
            stop.set()
            thread.join()


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device (RAM for the CPU)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available
