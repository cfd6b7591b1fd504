"""The ways in which benchmarks.readers reads a store with tensorstore: as most do, and what was found to be fastest."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from benchmarks.data import NAME, SHAPE

if TYPE_CHECKING:
    import tensorstore as ts


@dataclass(frozen=True)
class Way:
    """Blocks of a shuffled epoch, read with tensorstore.

    Attributes:
        mode: "default" reads through the page cache, "direct" past it.
        ahead: blocks in flight.
        to_batches: read straight into the memory of batches, which is used again; else into fresh memory, to be copied.
    """

    mode: Literal["default", "direct"]
    ahead: int
    to_batches: bool

    def open(self, folder: Path) -> "ts.TensorStore":
        import tensorstore as ts

        where = {"driver": "file", "path": str(folder / "store" / NAME)}
        context = ts.Context({"file_io_mode": {"mode": self.mode}})
        return ts.open({"driver": "zarr3", "kvstore": where}, open=True, read=True, context=context).result()

    def parts(self, folder: Path, starts: np.ndarray, block: int) -> Iterator[np.ndarray]:
        """Each block of rows, in memory of its own."""
        data, ahead = self.open(folder), deque["ts.Future"]()
        for start in starts:
            ahead.append(data[start : min(start + block, data.shape[0])].read())
            if len(ahead) > self.ahead:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def batches(self, folder: Path, starts: np.ndarray, block: int, batch: int) -> Iterator[torch.Tensor]:
        """Batches of whole blocks; a batch's memory is used again soon after the next one was asked for."""
        import tensorstore as ts

        data, per_batch = self.open(folder), batch // block
        memory = [torch.zeros(batch, *SHAPE, dtype=torch.float16) for _ in range(-(-self.ahead // per_batch) + 1)]
        targets = [ts.array(one.numpy(), copy=False, write=True) for one in memory]
        ahead: deque[tuple[torch.Tensor, list[ts.WriteFutures]]] = deque()
        for number, begin in enumerate(range(0, len(starts), per_batch)):
            which, filled, writing = number % len(memory), 0, []
            for start in starts[begin : begin + per_batch]:
                n = min(block, data.shape[0] - start)
                writing.append(targets[which][filled : filled + n].write(data[start : start + n]))
                filled += n
            ahead.append((memory[which][:filled], writing))
            if len(ahead) == len(memory):
                yield _whole(*ahead.popleft())
        while ahead:
            yield _whole(*ahead.popleft())


def _whole(rows: torch.Tensor, writing: "list[ts.WriteFutures]") -> torch.Tensor:
    for one in writing:
        one.result()
    return rows


WAYS = {
    "tensorstore": Way("default", 8, False),
    "tensorstore-batches-8": Way("default", 8, True),
    "tensorstore-direct-2": Way("direct", 2, False),
    "tensorstore-direct-8": Way("direct", 8, True),
    "tensorstore-direct-16": Way("direct", 16, True),
    "tensorstore-direct-32": Way("direct", 32, True),
}
