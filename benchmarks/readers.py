"""One shuffled epoch over the same rows, by each reader, in a separate process.

`python -m benchmarks.readers NAME FOLDER BATCH [cold|warm]` prints bytes, seconds and CPU seconds as JSON.
Every reader hands out float16 tensors [BATCH, 196, 768]; all but webdataset read blocks of 32 neighbours in random order.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from benchmarks.data import NAME, SHAPE
from benchmarks.tensorstores import WAYS, Way
from benchmarks.timing import forget

if TYPE_CHECKING:
    import zarr

    from store import Loader

BLOCK = 32
WARM_UP = 6  # batches before the clock starts; then the files leave the page cache


def blocks(n: int) -> np.ndarray:
    """First rows of the blocks, in random order."""
    return np.random.default_rng(0).permutation(-(-n // BLOCK)) * BLOCK


def _batches(parts: Iterator[np.ndarray], batch: int) -> Iterator[torch.Tensor]:
    """Blocks joined to batches, into reused memory."""
    out, filled = torch.empty(batch, *SHAPE, dtype=torch.float16), 0
    for part in parts:
        while len(part):
            n = min(len(part), batch - filled)
            out[filled : filled + n] = torch.from_numpy(part[:n])
            part, filled = part[n:], filled + n
            if filled == batch:
                yield out
                filled = 0
    if filled:
        yield out[:filled]


def loader(folder: Path, batch: int) -> Iterator[torch.Tensor]:
    """This project's; every row is compared with its digest."""
    yield from _ours(folder, batch, "always")


def unchecked(folder: Path, batch: int) -> Iterator[torch.Tensor]:
    """This project's, without comparing digests."""
    yield from _ours(folder, batch, "never")


def _ours(folder: Path, batch: int, verify: Literal["always", "never"]) -> Iterator[torch.Tensor]:
    for out in _loader(folder, batch, verify).epoch():
        yield out["patch"]


@cache
def _loader(folder: Path, batch: int, verify: Literal["always", "never"]) -> "Loader":
    """As in training: made once, for all epochs."""
    from store import FeatureStore, Loader

    store = FeatureStore.open(folder / "store", verify=verify)
    return Loader({"patch": store.array(NAME)}, store.labels, batch_size=batch, placement="stream", dtype=None)


def h5py(folder: Path, batch: int) -> Iterator[torch.Tensor]:
    import h5py

    with h5py.File(folder / "features.h5", "r") as file:
        data = file["features"]
        yield from _batches((data[start : start + BLOCK] for start in blocks(len(data))), batch)


def zarr_python(folder: Path, batch: int) -> Iterator[torch.Tensor]:
    import zarr

    data = zarr.open_array(folder / "store" / NAME, mode="r")
    yield from _batches((np.asarray(data[start : start + BLOCK]) for start in blocks(data.shape[0])), batch)


def zarrs(folder: Path, batch: int) -> Iterator[torch.Tensor]:
    import zarr
    import zarrs  # noqa: F401

    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        yield from zarr_python(folder, batch)


def _tensorstore(way: Way) -> Callable[[Path, int], Iterator[torch.Tensor]]:
    def read(folder: Path, batch: int) -> Iterator[torch.Tensor]:
        starts = blocks(way.open(folder).shape[0])
        if way.to_batches:
            yield from way.batches(folder, starts, BLOCK, batch)
        else:
            yield from _batches(way.parts(folder, starts, BLOCK), batch)

    return read


def webdataset(folder: Path, batch: int) -> Iterator[torch.Tensor]:
    """Tars in random order, samples mixed in a buffer, one process."""
    import webdataset as wds

    tars = [str(file) for file in sorted((folder / "tars").glob("*.tar"))]
    samples = wds.WebDataset(tars, shardshuffle=len(tars), empty_check=False, seed=0).shuffle(256).decode().to_tuple("npy")
    yield from _batches((row[None] for (row,) in samples), batch)


@cache
def _opened(path: Path) -> "zarr.Array":
    import zarr

    return zarr.open_array(path, mode="r")


class _Blocks(torch.utils.data.Dataset):
    def __init__(self, path: Path):
        self.path = path

    def __len__(self) -> int:
        return -(-_opened(self.path).shape[0] // BLOCK)

    def __getitem__(self, i: int) -> torch.Tensor:
        data = _opened(self.path)
        return torch.from_numpy(np.asarray(data[i * BLOCK : (i + 1) * BLOCK]))


def dataloader(folder: Path, batch: int) -> Iterator[torch.Tensor]:
    """torch's DataLoader with two spawned workers, over the same store through zarr-python, blocks as samples."""
    data = torch.utils.data.DataLoader(
        _Blocks(folder / "store" / NAME),
        batch_size=batch // BLOCK,
        shuffle=True,
        num_workers=2,
        collate_fn=torch.cat,
        multiprocessing_context="spawn",
        generator=torch.Generator().manual_seed(0),
    )
    yield from data


READERS: dict[str, Callable[[Path, int], Iterator[torch.Tensor]]] = {
    "loader": loader,
    "unchecked": unchecked,
    "h5py": h5py,
    "zarr_python": zarr_python,
    "zarrs": zarrs,
    **{name: _tensorstore(way) for name, way in WAYS.items()},
    "webdataset": webdataset,
    "dataloader": dataloader,
}


def main() -> None:
    name, folder, batch = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    for _ in zip(range(WARM_UP), READERS[name](folder, batch), strict=False):
        pass  # imports, threads, memory: what is paid once
    if sys.argv[4:] != ["warm"]:
        forget(folder)
    cpu, began, nbytes = _cpu(), time.perf_counter(), 0
    for out in READERS[name](folder, batch):
        nbytes += out.numel() * out.element_size()
    seconds, used = time.perf_counter() - began, _cpu() - cpu
    status = Path("/proc/self/status").read_text()
    peak = 1024 * int(status.split("VmHWM:")[1].split()[0])
    print(json.dumps({"nbytes": nbytes, "seconds": seconds, "cpu": used, "peak": peak}))


def _cpu() -> float:
    """CPU seconds of this process and of its workers that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


if __name__ == "__main__":
    main()
