"""A feature set in an object store: epochs from it and from the disk cache against raw GETs, fsspec's caches and zarr-python.

    python -m benchmarks.remote [--quick] [--gb 1] [--rounds 5] [--latency 0.02] [--endpoint URL] [--scratch FOLDER]

Writes tokens in a ViT-B's shape [n, 196, 768] float16 and puts them on moto's S3 server, on this machine, in a separate
process, which answers each request --latency seconds late; or, with --endpoint, on a service that runs already, in
its bucket `benchmark` (keys from the environment), whose bytes are not counted. All readers have 16 connections. Rounds are
interleaved; each ratio is the median over rounds of (seconds of the peer / seconds of ours): for a raw reader, the share of
its speed.

- `s3_epoch_vs_raw_gets`, `s3_epoch_vs_whole_gets`: a shuffled epoch of a loader that has done one before, against GETs by the
  same client of the same sizes and of whole shards, whose bytes are not used. `s3_epoch_vs_zarr_python`: against blocks of 32
  rows in random order. `s3_first_epoch_vs_…`: likewise a loader's first epoch, in which all digests are compared and its memory
  is touched for the first time.
- `cached_epoch_vs_local_disk`, `cached_epoch_vs_s3`, `cached_epoch_vs_blockcache`, `cached_epoch_vs_filecache`: the second
  epoch, files out of the page cache, likewise of each peer. `first_cached_epoch_vs_s3`: the epoch that fills the cache.
- `bytes_s3_epoch`, `bytes_first_cached_epoch`, `bytes_cached_epoch`: what the server sent, divided by the arrays' bytes.

Moto works in Python and copies the whole object for each range of it: on few cores it is the server that limits, more so the
larger the shards are; the ratios to raw GETs are valid nevertheless. The last line is JSON.
"""

import argparse
import gc
import multiprocessing
import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np

from benchmarks import data
from benchmarks.readers import BLOCK, blocks
from benchmarks.timing import conclude, forget
from store import FeatureStore, Loader
from store.places.cache import DiskCache
from store.places.object_store import PIECE_NBYTES, REQUESTS, ObjectStore

URL = "s3://benchmark/set"
BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Needs five times --gb of disk and of memory.")
    parser.add_argument("--quick", action="store_true", help="0.15 GB, one round: under a minute, and no evidence")
    parser.add_argument("--gb", type=float, default=1.0, help="size of the set, GB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds that each answer waits")
    parser.add_argument("--endpoint", help="of a service to take in place of moto's, e.g. http://127.0.0.1:9000")
    parser.add_argument("--scratch", type=Path, help="folder on the disk in question; a temporary one by default")
    given = parser.parse_args()
    size, rounds = (0.15, 1) if given.quick else (given.gb, given.rounds)
    folder = Path(tempfile.mkdtemp(prefix="beyondcls-benchmark-", dir=given.scratch))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    given_nbytes = spawn.Value("q", 0)
    server = spawn.Process(target=serve, args=(port, given.latency, given_nbytes), daemon=True)
    os.environ["AWS_ENDPOINT_URL"] = given.endpoint or f"http://127.0.0.1:{port}"
    try:
        if not given.endpoint:
            os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
            server.start()
            wait_for(port)
        ratios = run(folder, int(size * 1e9), rounds, given_nbytes)
    finally:
        if server.pid is not None:
            server.terminate()
        shutil.rmtree(folder)
    if given.endpoint:
        ratios = {name: value for name, value in ratios.items() if not name.startswith("bytes_")}
    conclude(ratios, size >= 1 and rounds >= 3)


def serve(port: int, latency: float, given: Any) -> None:
    """Moto's S3 server; `given` counts the bytes of answers to GETs."""
    import logging

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = DomainDispatcherApplication(create_backend_app)

    def counted(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        answer = list(moto(environ, start_response))
        if environ["REQUEST_METHOD"] == "GET":
            time.sleep(latency)
            with given.get_lock():
                given.value += sum(map(len, answer))
        return answer

    run_simple("127.0.0.1", port, counted, threaded=True)


def wait_for(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("moto's server does not start; is moto[server] installed?")


def run(folder: Path, nbytes: int, rounds: int, given: Any) -> dict[str, float]:
    n = data.rows_for(nbytes)
    store = data.write_store(folder / "set", data.tokens(), n, min(64, max(32, n // 8 // 32 * 32)))
    array = store.array(data.NAME)
    shards = {array.layout.file(i): array.layout.nbytes(i) for i in range(array.layout.n_shards)}
    fs = fsspec.filesystem("s3", config_kwargs={"max_pool_connections": REQUESTS})
    fs.mkdirs("benchmark", exist_ok=True)
    for file in sorted((folder / "set").rglob("*")):
        if file.is_file():
            fs.pipe(f"{URL}/{file.relative_to(folder / 'set')}", file.read_bytes())
    print(f"{n} rows, {array.nbytes / 1e9:.2f} GB, {len(shards)} shards of {array.layout.nbytes(0) / 1e6:.0f} MB")
    readers = Readers(folder, fs, shards, n)
    names = ["whole_gets", "raw_gets", "zarr_python", "s3_first", "s3"]
    names += ["first_cached", "cached", "local_disk", "blockcache", "filecache"]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    served: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + (rounds > 1)):  # in the first of several, memory is touched for the first time
        readers.number = number
        for name in names if number % 2 == 0 else [*names[2::-1], *names[3:]]:
            before, took = given.value, getattr(readers, name)()
            seconds[name].append(took)
            served[name].append((given.value - before) / array.nbytes)
    timed = {name: every[rounds > 1 :] for name, every in seconds.items()}
    for name, every in timed.items():
        rates = [array.nbytes / one / 1e9 for one in every]
        gave = statistics.median(served[name])
        print(f"{name:13} {statistics.median(rates):5.2f} GB/s ({min(rates):.2f} to {max(rates):.2f}), server gave {gave:.3f}")
    over: Callable[[str, str], float] = lambda ours, peer: statistics.median(  # noqa: E731
        peer_s / ours_s for ours_s, peer_s in zip(timed[ours], timed[peer], strict=True)
    )
    return {
        **{
            f"{ours}_epoch_vs_{peer}": over(ours, peer)
            for ours in ("s3", "s3_first")
            for peer in ("raw_gets", "whole_gets", "zarr_python")
        },
        "first_cached_epoch_vs_s3": over("first_cached", "s3"),
        **{f"cached_epoch_vs_{peer}": over("cached", peer) for peer in ("local_disk", "s3", "blockcache", "filecache")},
        **{f"bytes_{name}_epoch": statistics.median(served[name]) for name in ("s3", "first_cached", "cached")},
    }


class Readers:
    """One epoch each, in seconds."""

    def __init__(self, folder: Path, fs: Any, shards: dict[str, int], n: int):
        self.folder, self.fs, self.shards, self.n, self.number = folder, fs, shards, n, 0
        self.place = ObjectStore(URL)

    def whole_gets(self) -> float:
        return self._gets([(name, 0, nbytes) for name, nbytes in self.shards.items()])

    def raw_gets(self) -> float:
        sizes = self.shards.items()
        every = [(name, at, min(at + PIECE_NBYTES, size)) for name, size in sizes for at in range(0, size, PIECE_NBYTES)]
        return self._gets([every[i] for i in np.random.default_rng(self.number).permutation(len(every))])

    def _gets(self, ranges: list[tuple[str, int, int]]) -> float:
        with ThreadPoolExecutor(REQUESTS) as pool:
            began = time.perf_counter()
            list(pool.map(lambda r: len(self.place.range(*r)), ranges))
            return time.perf_counter() - began

    def zarr_python(self) -> float:
        import zarr

        array = zarr.open_array(f"{URL}/{data.NAME}", mode="r")
        with ThreadPoolExecutor(REQUESTS) as pool:
            began = time.perf_counter()
            list(pool.map(lambda start: np.asarray(array[start : start + BLOCK]).nbytes, blocks(self.n)))
            return time.perf_counter() - began

    def s3_first(self) -> float:
        self.loader = self._loader(FeatureStore.open(URL))
        return self._epoch(self.loader)

    def s3(self) -> float:
        """After `s3_first`."""
        return self._epoch(self.loader)

    def first_cached(self) -> float:
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        self.cached_store = FeatureStore.open(URL, cache=DiskCache(self.folder / "cache", 1 << 50))
        return self._epoch(self._loader(self.cached_store))

    def cached(self) -> float:
        """As in a new process, which has compared nothing yet except the descriptions."""
        store = FeatureStore.open(URL, cache=DiskCache(self.folder / "cache", 1 << 50))
        forget(self.folder / "cache")
        return self._epoch(self._loader(store))

    def local_disk(self) -> float:
        store = FeatureStore.open(self.folder / "set")
        forget(self.folder / "set")
        return self._epoch(self._loader(store))

    def _loader(self, store: FeatureStore) -> Loader:
        labels = np.zeros(len(store), np.int64)
        return Loader({"patch": store.array(data.NAME)}, labels, batch_size=BATCH, placement="stream", dtype=None)

    def _epoch(self, loader: Loader) -> float:
        began = time.perf_counter()
        for _ in loader.epoch(self.number):
            pass
        return time.perf_counter() - began

    def blockcache(self) -> float:
        return self._second("blockcache", self.folder / "blocks")

    def filecache(self) -> float:
        return self._second("filecache", self.folder / "files")

    def _second(self, protocol: str, kept: Path) -> float:
        """MiB-long blocks in random order, of files that fsspec has on the disk; their bytes are not used."""
        ranges = [(name, at) for name, size in self.shards.items() for at in range(0, size, 1 << 20)]
        order = np.random.default_rng(self.number).permutation(len(ranges)).tolist()

        def read(turn: list[int]) -> float:
            fs = fsspec.filesystem(protocol, fs=self.fs, cache_storage=str(kept))
            files = {name: fs.open(f"{URL}/{name}", block_size=PIECE_NBYTES) for name in self.shards}
            began = time.perf_counter()
            for name, at in (ranges[i] for i in turn):
                files[name].seek(at)
                files[name].read(1 << 20)
            took = time.perf_counter() - began
            for file in files.values():
                file.close()
            fs.save_cache()
            return took

        if not kept.exists():
            read(sorted(order))
        fsspec.AbstractFileSystem.clear_instance_cache()
        gc.collect()  # what is mapped into memory cannot leave the page cache
        forget(kept)
        return read(order)


if __name__ == "__main__":
    main()
