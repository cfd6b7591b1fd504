"""The store and its loader against a raw disk, h5py, zarr-python, zarrs, tensorstore, webdataset and torch's DataLoader.

    python -m benchmarks.store [--quick] [--gb 4.6] [--rounds 5] [--peers tensorstore …] [--scratch FOLDER]

Writes tokens of a real ViT in a ViT-B's shape [n, 196, 768] float16 in each reader's own form (the Zarr readers share one
store), then times one shuffled epoch of each, in a separate process, files out of the page cache, and one with files in
it, which tells readers apart where the disk is the limit of all. Rounds are interleaved, as disks and load vary;
each ratio is the median over rounds of (seconds of the peer / seconds of ours; `cold_cpu_…`: CPU seconds), but `cold_vs_raw`,
`warm_vs_memcpy` and `write_vs_raw` are shares of that speed, and `digest_cost` is a share of the epoch. Raw is the best of
1 to 32 reads in flight (benchmarks.disk), and tensorstore the best of several ways, too (benchmarks.tensorstores).
The last line is JSON.
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks import data
from benchmarks.tensorstores import WAYS
from benchmarks.timing import conclude, measured, measured_disk, remember
from store.places.place import aligned_zeros

BATCH = 256
PEERS = ("h5py", "zarrs", "tensorstore", "zarr_python", "webdataset", "dataloader")
Round = dict[str, dict[str, Any]]  # what each reader took: nbytes, seconds, cpu, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Needs three times --gb of disk.")
    parser.add_argument("--quick", action="store_true", help="0.2 GB, one round, one way of tensorstore: no evidence")
    parser.add_argument("--gb", type=float, default=4.6, help="size of the set, GB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, help="all by default")
    parser.add_argument("--scratch", type=Path, help="folder on the disk in question; a temporary one by default")
    given = parser.parse_args()
    size, rounds, ways = (0.2, 1, tuple(WAYS)[:1]) if given.quick else (given.gb, given.rounds, tuple(WAYS))
    folder = Path(tempfile.mkdtemp(prefix="beyondcls-benchmark-", dir=given.scratch))
    try:
        ratios = run(folder, int(size * 1e9), rounds, given.peers, ways)
    finally:
        shutil.rmtree(folder)
    conclude(ratios, size >= 1 and rounds >= 3)


def run(folder: Path, nbytes: int, rounds: int, peers: Sequence[str], ways: Sequence[str]) -> dict[str, float]:
    source, n = data.tokens(), data.rows_for(nbytes)
    shard_rows = min(1024, max(64, n // 4 // 32 * 32))
    print(f"{n} rows, {n * data.ROW_NBYTES / 1e9:.2f} GB, shards of {shard_rows} rows")
    writing = [written(folder, source, n, shard_rows) for _ in range(max(1, rounds))]
    if "h5py" in peers:
        data.write_h5(folder / "features.h5", source, n)
    if "webdataset" in peers:
        data.write_tars(folder / "tars", source, n, shard_rows)
    runs, settings = cold(folder, rounds, peers, ways)
    remember(folder)
    without_disk = {reader: measured(reader, folder, BATCH, "warm") for reader in ("loader", *peers)}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:  # this process has held gigabytes
        digests = fresh.submit(with_and_without_digests, folder, 4 * rounds).result()
        warm = fresh.submit(warm_and_memcpy, folder, 4 * rounds).result()
    for reader in runs[0]:
        every = [one[reader] for one in runs]
        rates = [one["nbytes"] / one["seconds"] / 1e9 for one in every]
        cpus = [one["cpu"] / one["nbytes"] * 1e9 for one in every]
        setting = f", {settings[reader]}" if reader in settings else ""
        print(
            f"cold {reader:12} {statistics.median(rates):5.2f} GB/s ({min(rates):.2f} to {max(rates):.2f}), "
            f"{statistics.median(cpus):.2f} CPU s/GB, peak {max(one['peak'] for one in every) / 1e9:.2f} GB{setting}"
        )
    for reader, one in without_disk.items():
        rate, cpu = one["nbytes"] / one["seconds"] / 1e9, one["cpu"] / one["nbytes"] * 1e9
        print(f"warm {reader:12} {rate:5.2f} GB/s, {cpu:.2f} CPU s/GB")
    for what, pairs in (("warm loader, memcpy", warm), ("write ours, raw", writing)):
        print(f"{what:18} " + ", ".join(f"{ours:.2f}/{peer:.2f}" for ours, peer in pairs) + " GB/s")
    print("digests with, without  " + ", ".join(f"{checked:.2f}/{without:.2f}" for checked, without in digests) + " s")
    over: Callable[[str, str], float] = lambda peer, what: statistics.median(  # noqa: E731
        per_byte(one, peer, what) / per_byte(one, "loader", what) for one in runs
    )
    return {
        "cold_vs_raw": over("raw", "seconds"),
        **{f"cold_vs_{peer}": over(peer, "seconds") for peer in peers},
        **{f"cold_cpu_vs_{peer}": over(peer, "cpu") for peer in peers},
        **{f"warm_vs_{peer}": per_byte(without_disk, peer) / per_byte(without_disk, "loader") for peer in peers},
        "warm_vs_memcpy": statistics.median(ours / peer for ours, peer in warm),
        "write_vs_raw": statistics.median(ours / peer for ours, peer in writing),
        "digest_cost": statistics.median(1 - without / checked for checked, without in digests),
    }


def cold(folder: Path, rounds: int, peers: Sequence[str], ways: Sequence[str]) -> tuple[list[Round], dict[str, str]]:
    """An epoch of each reader a round, files not in the page cache.

    Gives the rounds, with the best way of disk and tensorstore in the median, and which these are.
    """
    readers = [way for name in ("loader", "unchecked", *peers) for way in (ways if name == "tensorstore" else (name,))]
    every: list[tuple[Round, Round]] = []
    for number in range(rounds):
        runs: Round = {}
        for reader in readers if number % 2 == 0 else readers[::-1]:
            runs[reader] = measured(reader, folder, BATCH, "cold")
        every.append((runs, measured_disk(folder)))
        rates = {name: one["nbytes"] / one["seconds"] / 1e9 for part in every[-1] for name, one in part.items()}
        print(f"round {number}: " + ", ".join(f"{name} {rate:.2f}" for name, rate in rates.items()) + " GB/s", flush=True)
    raw = best([disk for _, disk in every])
    settings, best_of = {"raw": raw}, {}
    if "tensorstore" in peers:
        settings["tensorstore"] = best_of["tensorstore"] = best([{way: runs[way] for way in ways} for runs, _ in every])
    rounds_of = [
        {"raw": disk[raw], **{name: runs[best_of.get(name, name)] for name in ("loader", "unchecked", *peers)}}
        for runs, disk in every
    ]
    return rounds_of, settings


def best(runs: Sequence[Round]) -> str:
    """What has the fewest seconds a byte, in the median over rounds."""
    return min(runs[0], key=lambda name: statistics.median(per_byte(one, name) for one in runs))


def per_byte(one: Round, reader: str, what: str = "seconds") -> float:
    return one[reader][what] / one[reader]["nbytes"]


def written(folder: Path, source: data.Rows, n: int, shard_rows: int) -> tuple[float, float]:
    """GB/s of writing the store, and of writing the same bytes to one file with O_DIRECT and one fsync at the end."""
    block = aligned_zeros((shard_rows, *data.SHAPE), np.float16)  # as extraction hands it over
    source.take(range(shard_rows), axis=0, mode="wrap", out=block)
    shutil.rmtree(folder / "store", ignore_errors=True)
    began = time.perf_counter()
    data.write_store(folder / "store", block, n, shard_rows)
    ours = time.perf_counter() - began
    raw = block.reshape(-1).view(np.uint8)
    began = time.perf_counter()
    descriptor = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    left = n * data.ROW_NBYTES
    while left > 0:
        view = memoryview(raw.data)[: left - left % 4096 if left < len(raw) else len(raw) - len(raw) % 4096]
        for start in range(0, len(view), 4 << 20):
            os.write(descriptor, view[start : start + (4 << 20)])
        left -= max(len(view), 4096)
    os.fsync(descriptor)
    os.close(descriptor)
    peer = time.perf_counter() - began
    (folder / "raw").unlink()
    return n * data.ROW_NBYTES / ours / 1e9, n * data.ROW_NBYTES / peer / 1e9


def with_and_without_digests(folder: Path, pairs: int) -> list[tuple[float, float]]:
    """Seconds of cold epochs over about a GB, every row compared with its digest and none, one right after the other."""
    from store import FeatureStore, Loader

    def loader(verify: Literal["always", "never"]) -> Loader:
        store = FeatureStore.open(folder / "store", verify=verify)
        rows = np.arange(min(len(store), data.rows_for(10**9)))
        array = store.array(data.NAME)
        return Loader({"patch": array}, store.labels, rows, BATCH, placement="stream", dtype=None, direct=True)

    loaders, pairs_of_seconds = (loader("always"), loader("never")), []
    for number in range(pairs + 1):
        seconds = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            for _ in loaders[which].epoch(number):
                pass
            seconds[which] = time.perf_counter() - began
        pairs_of_seconds.append((seconds[0], seconds[1]))
    return pairs_of_seconds[1:]  # the first touches fresh memory


def warm_and_memcpy(folder: Path, rounds: int) -> list[tuple[float, float]]:
    """GB/s of shuffled epochs over files in the page cache, each with that of copying one batch to another right after."""
    from store import FeatureStore, Loader

    store = FeatureStore.open(folder / "store")
    array = store.array(data.NAME)
    shards = range(max(1, min(array.layout.n_shards - 1, 2 * 10**9 // array.layout.nbytes(0))))
    rows = np.arange(array.layout.rows(shards[-1])[1])
    remember(folder / "store")
    loader = Loader({"patch": array}, store.labels, rows, BATCH, placement="stream", dtype=None)
    one, other = torch.ones(BATCH * data.ROW_NBYTES, dtype=torch.uint8), torch.zeros(BATCH * data.ROW_NBYTES, dtype=torch.uint8)
    rates = []
    for epoch in range(rounds + 2):
        began = time.perf_counter()
        for _ in loader.epoch(epoch):
            pass
        ours = len(rows) * data.ROW_NBYTES / (time.perf_counter() - began) / 1e9
        began = time.perf_counter()
        for _ in range(20):
            other.copy_(one)
        rates.append((ours, 20 * len(one) / (time.perf_counter() - began) / 1e9))
    return rates[2:]  # the first compares digests, and both touch fresh memory


if __name__ == "__main__":
    main()
