"""Features that are kept whole, in memory or on the device."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from store.format.array import ArrayReader
from store.loading.buffers import Pool
from store.loading.decode import Key
from store.loading.scatter import scatters
from store.places.aligned import aligned_zeros

UPLOAD_NBYTES = 64 << 20  # read before it is copied to the device, at least


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
