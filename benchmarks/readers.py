"""One shuffled epoch over the same rows, in one way of reading, in a process of its own.

`python -m benchmarks.readers READER WAY FOLDER BATCH CODECS STATES` prints bytes, seconds, CPU seconds and peak memory as JSON,
for each of CODECS (float16,int8) and STATES (cold,warm): before an epoch its files leave the page cache, or are read into it.
FOLDER holds a folder for each codec with the forms of `benchmarks.data`.

Every way hands out tensors as they are stored: float16 tokens [B, 196, 768], or int8 tokens and float32 scales [B, 196].
All but webdataset read blocks of 32 neighbours in random order, in threads or processes that read ahead, straight into memory
that is used again where they can. Files, threads, processes and memory outlive an epoch.
"""

import json
import mmap
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice, product
from pathlib import Path
from threading import local
from typing import Any, Literal

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from packaging.version import Version
from torch import Tensor

from benchmarks.data import NAME, SHAPE, TOKENS
from benchmarks.timing import forget, remember
from pipelines.process.device import keep_freed_memory
from store.codecs import get_codec
from store.codecs.codec import Coded

BLOCK = 32
_MAPS: list[mmap.mmap] = []  # of this process
WARM_UP = 6  # batches before the clock starts: threads, memory and what else is paid once
Batch = list[Tensor]  # tokens, and scales where there are any
Epoch = Callable[[], Iterator[Batch]]
Way = Callable[[Path, int], Epoch]  # of a folder and a batch size
Read = Callable[[slice, Sequence[NDArray]], object]  # rows of all parts, into arrays [n, ...]


def blocks(n: int) -> np.ndarray:
    """First rows of the blocks, in random order."""
    return np.random.default_rng(0).permutation(-(-n // BLOCK)) * BLOCK


# How a peer opens a set, folder and names of the parts given: the number of rows, and what reads a block of them.


def h5py(folder: Path, parts: Sequence[str], layout: str) -> tuple[int, Read]:
    import h5py

    file = h5py.File(folder / f"h5/{layout}.h5", "r")
    arrays = [file[TOKENS + part] for part in parts]
    return len(arrays[0]), _each(arrays, lambda array, rows, out: array.read_direct(out, rows))


def npy(folder: Path, parts: Sequence[str], how: Literal["map", "advised", "read"]) -> tuple[int, Read]:
    """Copies from a memory map, with MADV_RANDOM and a MADV_WILLNEED for each block if `advised`; "read" does without a map."""
    arrays = [np.load(folder / f"npy/{TOKENS}{part}.npy", mmap_mode="r") for part in parts]
    files = {id(array): os.open(array.filename, os.O_RDONLY) for array in arrays}
    _MAPS.extend(array._mmap for array in arrays)
    for array in arrays if how == "advised" else ():
        array._mmap.madvise(mmap.MADV_RANDOM)

    def copy(array: Any, rows: slice, out: NDArray) -> None:
        begin = array.offset + rows.start * array[0].nbytes
        if how == "read":
            assert os.preadv(files[id(array)], [out.data], begin) == out.nbytes
            return
        if how == "advised":  # the map begins where the page of `offset` does, at 0
            page = begin // mmap.PAGESIZE * mmap.PAGESIZE
            array._mmap.madvise(mmap.MADV_WILLNEED, page, begin + out.nbytes - page)
        out[:] = array[rows]

    return len(arrays[0]), _each(arrays, copy)


def zarr(folder: Path, parts: Sequence[str], **config: Any) -> tuple[int, Read]:
    """zarr-python with these settings, with two underscores for dots; one of them chooses zarrs."""
    import zarr
    from zarr.core.buffer.cpu import NDBuffer

    zarr.config.set({name.replace("__", "."): value for name, value in config.items()})
    if "zarrs" in config.get("codec_pipeline__path", ""):
        import zarrs  # noqa: F401
    arrays = [zarr.open_array(folder / "store" / (NAME + part), mode="r") for part in parts]
    return arrays[0].shape[0], _each(arrays, lambda array, rows, out: array.get_basic_selection(rows, out=NDBuffer(out)))


def zarrista(folder: Path, parts: Sequence[str]) -> tuple[int, Read]:
    from zarrista import Array
    from zarrista.store import FilesystemStore

    arrays = [Array.open(FilesystemStore(folder / "store"), f"/{NAME}{part}") for part in parts]
    with_index = [(array, array.shard_cache()) for array in arrays]

    def copy(opened: Any, rows: slice, out: NDArray) -> None:
        array, index = opened
        chunk = [rows.start // BLOCK] + [0] * (array.ndim - 1)
        out[:] = array.retrieve_subchunk(chunk, shard_cache=index).to_numpy()[: len(out)]

    return arrays[0].shape[0], _each(with_index, copy)


def tensorstore(folder: Path, parts: Sequence[str], mode: Literal["default", "direct"]) -> tuple[int, Read]:
    """Through the page cache, or past it ("direct")."""
    import tensorstore as ts

    context = ts.Context({"file_io_mode": {"mode": mode}})
    where = [{"driver": "file", "path": str(folder / "store" / (NAME + part))} for part in parts]
    opened = [ts.open({"driver": "zarr3", "kvstore": one}, open=True, read=True, context=context) for one in where]
    arrays = [one.result() for one in opened]
    read = lambda array, rows, out: ts.array(out, copy=False, write=True).write(array[rows]).result()  # noqa: E731
    return arrays[0].shape[0], _each(arrays, read)


def lance(folder: Path, parts: Sequence[str], how: Literal["take", "range"]) -> tuple[int, Read]:
    """`take` of a data set, or a range of its one file, which is what a block of neighbours is."""
    import lance
    from lance.file import LanceFileReader

    data, names, files = lance.dataset(folder / "lance"), [TOKENS + part for part in parts], local()
    (path,) = (folder / "lance/data").iterdir()

    def read(rows: slice, outs: Sequence[NDArray]) -> None:
        if how == "take":
            table = data.take(range(rows.start, rows.stop), columns=names)
        else:
            if not hasattr(files, "own"):  # one cannot be read by two threads
                files.own = LanceFileReader(str(path), columns=names)
            table = files.own.read_range(rows.start, rows.stop - rows.start, batch_size=BLOCK).to_table()
        for name, out in zip(names, outs, strict=True):
            out[:] = table[name].combine_chunks().values.to_numpy().reshape(out.shape)

    return data.count_rows(), read


def _each(arrays: Sequence[Any], read: Callable[[Any, slice, Any], object]) -> Read:
    def every(rows: slice, outs: Sequence[NDArray]) -> None:
        for array, out in zip(arrays, outs, strict=True):
            read(array, rows, out)

    return every


def _threads(n: int, opened: Callable[..., tuple[int, Read]], **options: Any) -> Way:
    """Threads, each of which reads a block at a time. A batch's memory is used again soon after the next one was asked for."""

    def way(folder: Path, batch: int) -> Epoch:
        n_rows, read = opened(folder, _parts(folder), **options)
        pool, per_batch = ThreadPoolExecutor(n), batch // BLOCK
        memory = [_memory(folder, batch) for _ in range(-(-n // per_batch) + 1)]

        def epoch() -> Iterator[Batch]:
            starts, ahead = blocks(n_rows).tolist(), deque[tuple[Batch, list[Future[object]]]]()
            try:
                for number, begin in enumerate(range(0, len(starts), per_batch)):
                    filled, reading, out = 0, list[Future[object]](), memory[number % len(memory)]
                    for start in starts[begin : begin + per_batch]:
                        rows = slice(start, min(start + BLOCK, n_rows))
                        into = [part[filled : filled + rows.stop - start].numpy() for part in out]
                        reading.append(pool.submit(read, rows, into))
                        filled += rows.stop - start
                    ahead.append(([part[:filled] for part in out], reading))
                    if len(ahead) == len(memory):
                        yield _whole(*ahead.popleft())
                while ahead:
                    yield _whole(*ahead.popleft())
            finally:
                for left in ahead:
                    _whole(*left)

        return epoch

    return way


def _whole(rows: Batch, reading: Sequence[Future[object]]) -> Batch:
    for one in reading:
        one.result()
    return rows


def _parts(folder: Path) -> tuple[str, ...]:
    return tuple(get_codec(folder.name).parts(SHAPE))


def _memory(folder: Path, n: int, shared: bool = False) -> Batch:
    """Room for n rows of each part, which processes may share."""
    out = []
    for shape, dtype in get_codec(folder.name).parts((n, *SHAPE)).values():
        part = torch.empty(0, dtype=getattr(torch, dtype))
        nbytes = part.element_size() * int(np.prod(shape))
        out.append(part.set_(torch.UntypedStorage._new_shared(nbytes)).view(shape) if shared else part.new_zeros(shape))
    return out


class _Batches(torch.utils.data.Dataset[Any]):
    """Blocks, of which `__getitems__`, which a DataLoader calls, makes a batch."""

    def __init__(self, opened: Callable[..., tuple[int, Read]], folder: Path):
        self.opened, self.folder = opened, folder

    def __len__(self) -> int:
        return -(-_once(self.opened, self.folder)[0] // BLOCK)

    def __getitems__(self, numbers: list[int]) -> Batch:
        n, read = _once(self.opened, self.folder)
        out, filled = _memory(self.folder, BLOCK * len(numbers), shared=True), 0
        for start in (BLOCK * number for number in numbers):
            rows = slice(start, min(start + BLOCK, n))
            read(rows, [part[filled : filled + rows.stop - start].numpy() for part in out])
            filled += rows.stop - start
        return [part[:filled] for part in out]


@cache
def _once(opened: Callable[..., tuple[int, Read]], folder: Path) -> tuple[int, Read]:
    """Opened in each process."""
    return opened(folder, _parts(folder))


def _processes(n: int, opened: Callable[..., tuple[int, Read]], **options: Any) -> Way:
    """Workers of torch's DataLoader, each of which reads two batches ahead."""

    def way(folder: Path, batch: int) -> Epoch:
        order = {"shuffle": True, "generator": torch.Generator().manual_seed(0)}
        return _loaded(_Batches(partial(opened, **options), folder), n, batch_size=batch // BLOCK, **order)

    return way


def _loaded(dataset: Any, n: int, **options: Any) -> Epoch:
    if n:
        options |= {"multiprocessing_context": "spawn", "persistent_workers": True}
    loader = torch.utils.data.DataLoader(dataset, num_workers=n, collate_fn=_tensors, **options)
    return lambda: iter(loader)


def _tensors(parts: Sequence[Any]) -> Batch:
    return [torch.as_tensor(part) for part in parts]


def _tars(n: int) -> Way:
    """Tars in random order, samples mixed in a buffer; in `n` processes, or in this one."""

    def way(folder: Path, batch: int) -> Epoch:
        import webdataset as wds

        tars = [str(file) for file in sorted((folder / "tars").glob("*.tar"))]
        members = [f"{TOKENS}{part}.npy" for part in _parts(folder)]
        samples = (
            wds.WebDataset(tars, shardshuffle=len(tars), empty_check=False, seed=0).shuffle(256).decode().to_tuple(*members)
        )
        return _loaded(samples.batched(batch), n, batch_size=None)

    return way


def _ours(verify: Literal["always", "never"]) -> Way:
    """This project's, as in training; every row is compared with its digest, or none."""

    def way(folder: Path, batch: int) -> Epoch:
        from store import FeatureStore, Loader

        store = FeatureStore.open(folder / "store", verify=verify)
        arrays = {TOKENS: store.array(NAME)}
        loader = Loader(arrays, store.labels, batch_size=batch, placement="stream", dtype="stored")

        def epoch() -> Iterator[Batch]:
            for out in loader.epoch():
                tokens = out[TOKENS]
                yield list(tokens.parts.values()) if isinstance(tokens, Coded) else [tokens]

        return epoch

    return way


@dataclass(frozen=True)
class Reader:
    """What reads one of the forms.

    Attributes:
        title: what it is called.
        form: of `benchmarks.data`.
        package: that it needs, as pip names it; None for this project.
        ways: how it is used, by what is special about it; the first is that of quick runs.
        since: word in a way's name -> version of the package that has it.
    """

    title: str
    form: str
    package: str | None
    ways: Mapping[str, Way]
    since: Mapping[str, str] = field(default_factory=dict)

    def lacks(self, way: str = "") -> str | None:
        """Why it cannot read, or not in this way; None if it can."""
        if self.package is None:
            return None
        try:
            found = version(self.package)
        except PackageNotFoundError:
            return f"{self.package} is not installed: pip install {self.package}"
        for word, since in self.since.items():
            if word in way and Version(found) < Version(since):
                return f"{self.package} is {found}: pip install '{self.package}>={since}'"
        return None


FUSED = {"codec_pipeline__path": "zarr.core.codec_pipeline.FusedCodecPipeline"}
ZARRS = {"codec_pipeline__path": "zarrs.ZarrsCodecPipeline"}
READERS = {
    "loader": Reader("beyondcls, every row checked", "store", None, {"": _ours("always")}),
    "unchecked": Reader("beyondcls, no row checked", "store", None, {"": _ours("never")}),
    "tensorstore": Reader(
        "tensorstore",
        "store",
        "tensorstore",
        {
            "8 threads": _threads(8, tensorstore, mode="default"),
            "32 threads, direct": _threads(32, tensorstore, mode="direct"),
        },
    ),
    "zarr_python": Reader(
        "zarr-python",
        "store",
        "zarr",
        {
            "8 threads": _threads(8, zarr),
            "8 threads, fused": _threads(8, zarr, **FUSED),
            "2 processes, fused": _processes(2, zarr, **FUSED),
        },
        since={"fused": "3.3"},
    ),
    "zarrs": Reader(
        "zarr-python with zarrs",
        "store",
        "zarrs",
        {
            "8 threads": _threads(8, zarr, **ZARRS),
            "8 threads, direct": _threads(8, zarr, **ZARRS, codec_pipeline__direct_io=True),
        },
    ),
    "zarrista": Reader("zarrista", "store", "zarrista", {f"{n} threads": _threads(n, zarrista) for n in (8, 2)}),
    "lance": Reader(
        "Lance",
        "lance",
        "pylance",
        {
            "take, 8 threads": _threads(8, lance, how="take"),
            "range, 2 threads": _threads(2, lance, how="range"),
        },
    ),
    "h5py": Reader(
        "h5py",
        "h5",
        "h5py",
        {
            "chunks of a row, 1 thread": _threads(1, h5py, layout="rows"),
            "contiguous, 1 thread": _threads(1, h5py, layout="contiguous"),
            "contiguous, 8 threads": _threads(8, h5py, layout="contiguous"),
            "contiguous, 2 processes": _processes(2, h5py, layout="contiguous"),
        },
    ),
    "npy": Reader(
        "numpy, .npy",
        "npy",
        "numpy",
        {
            "map, 8 threads": _threads(8, npy, how="map"),
            "map and madvise, 8 threads": _threads(8, npy, how="advised"),
            "plain reads, 8 threads": _threads(8, npy, how="read"),
        },
    ),
    "webdataset": Reader("webdataset", "tars", "webdataset", {"1 process": _tars(0), "2 processes": _tars(2)}),
}


def main() -> None:
    keep_freed_memory()  # of all alike: it spares those that take fresh memory each time
    reader, (_, _, way, folder, batch, codecs, states) = READERS[sys.argv[1]], sys.argv
    measured: dict[str, dict[str, dict[str, float]]] = {codec: {} for codec in codecs.split(",")}
    for codec, state in product(measured, states.split(",")):
        files = Path(folder) / codec / reader.form
        (remember if state == "warm" else forget)(files)  # as a program finds them when it opens them
        epoch = reader.ways[way](files.parent, int(batch))
        deque(islice(epoch(), WARM_UP), 0)  # keeps none: the memory of a batch that is held cannot be used again
        if state == "cold":
            for one in _MAPS:
                one.madvise(mmap.MADV_DONTNEED)  # what is mapped does not leave the page cache
            forget(files)
        cpu, began, nbytes = _cpu(), time.perf_counter(), 0
        for out in epoch():
            nbytes += sum(part.nbytes for part in out)
        seconds, used = time.perf_counter() - began, _cpu() - cpu
        peak = 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
        measured[codec][state] = {"nbytes": nbytes, "seconds": seconds, "cpu": used, "peak": peak}
    print(json.dumps(measured))


def _cpu() -> float:
    """CPU seconds of this process and of its workers."""
    own = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    return own + sum(sum(worker.cpu_times()[:2]) for worker in psutil.Process().children(recursive=True))


if __name__ == "__main__":
    main()
