"""The store and its loader beside its peers, in the versions that are installed and each at its best, and beside a raw disk.

    python -m benchmarks.store [--quick] [--gb 1] [--rounds 3] [--peers tensorstore …] [--out docs/store.md] [--scratch FOLDER]

Writes tokens of a real ViT in a ViT-B's shape [n, 196, 768], as float16 and as int8 with float32 scales, in each reader's form
(the Zarr readers share one store), and times shuffled epochs of each (benchmarks.readers) in separate processes: cold, with no
file in the page cache, and warm, with all, which tells readers apart where the disk is the limit of all. Tokens are handed out
as they are stored. First all ways of a peer are tried on float16, an epoch each; that which was fastest cold, and that which
was fastest warm, are measured in rounds. What is not installed is named and left out.

Rounds are interleaved, as disks and load vary; each ratio is the median over rounds of (seconds of the peer / seconds of ours;
`…_cpu_…`: CPU seconds), `int8_…` that of int8 tokens, but `cold_vs_raw`, `warm_vs_memcpy` and `write_vs_raw` are shares of that
speed, and `digest_cost` is a share of the epoch. Raw is the best of 1 to 32 reads in flight (benchmarks.disk). --out writes the
table between its markers on a page. The last line is JSON.
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks import data
from benchmarks.readers import READERS
from benchmarks.timing import conclude, measured, measured_disk, remember
from store.places.place import aligned_zeros

BATCH = 256
CODECS, STATES = ("float16", "int8"), ("cold", "warm")
OURS = ("loader", "unchecked")
PEERS = tuple(name for name in READERS if name not in OURS)
Took = Mapping[str, Any]  # nbytes, seconds, cpu, peak
Round = Mapping[tuple[str, str, str], Took]  # by codec, reader and state
Ways = Mapping[str, Mapping[str, str]]  # reader -> state -> the way that is measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Needs ten times --gb of disk.")
    parser.add_argument("--quick", action="store_true", help="0.1 GB, one round, tensorstore in one way: no evidence")
    parser.add_argument("--gb", type=float, default=1.0, help="size of the float16 tokens, GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="all by default")
    parser.add_argument("--out", type=Path, help="page with markers, between which the table is written")
    parser.add_argument("--scratch", type=Path, help="folder on the disk in question; a temporary one by default")
    given = parser.parse_args()
    size, rounds = (0.1, 1) if given.quick else (given.gb, given.rounds)
    peers = given.peers if given.peers is not None else PEERS[:1] if given.quick else PEERS
    if given.out:
        page_with(given.out, "")  # or its markers would be missed in the end
    left_out = [lack for peer in peers for lack in lacking(peer)]
    print(*(f"left out: {lack}" for lack in left_out), sep="\n", end="\n" * bool(left_out))
    peers = [peer for peer in peers if READERS[peer].lacks() is None]
    folder = Path(tempfile.mkdtemp(prefix="beyondcls-benchmark-", dir=given.scratch))
    try:
        ways, rounds_of, ratios = run(folder, int(size * 1e9), rounds, peers, given.quick)
    finally:
        shutil.rmtree(folder)
    text = "\n\n".join((about(size, rounds, left_out), table(ways, rounds_of)))
    print(text)
    if given.out:
        given.out.write_text(page_with(given.out, text), encoding="utf-8")
    conclude(ratios, size >= 1 and rounds >= 3)


def page_with(page: Path, text: str) -> str:
    """The page with this text between the markers.

    Raises:
        BeyondClsError: it has no such markers.
    """
    from quickstart.readme import with_block  # takes seconds

    return with_block(str(page), page.read_text(encoding="utf-8"), "store and peers", text)


def lacking(peer: str) -> list[str]:
    """What has to be installed for a peer, or for some of its ways."""
    reader = READERS[peer]
    if (lack := reader.lacks()) is not None:
        return [lack]
    return [f"{reader.title}, {way}: {lack}" for way in reader.ways if (lack := reader.lacks(way)) is not None]


def run(
    folder: Path, nbytes: int, rounds: int, peers: Sequence[str], quick: bool
) -> tuple[Ways, list[Round], dict[str, float]]:
    source, n = data.tokens(), data.rows_for(nbytes)
    shard_rows = min(1024, max(64, n // 4 // 32 * 32))
    print(f"{n} rows, {n * data.ROW_NBYTES / 1e9:.2f} GB, shards of {shard_rows} rows")
    float16 = folder / "float16"
    for codec in CODECS:
        (folder / codec).mkdir()
        parts = data.parts_of(source, codec)
        for form in dict.fromkeys(READERS[name].form for name in (*OURS, *peers)):
            data.FORMS[form](folder / codec / form, parts, n, shard_rows)
    os.sync()  # or it would go on beside what is measured
    writing = [written(float16, source, n, shard_rows) for _ in range(rounds)]
    ways = fastest(folder, peers, quick)
    measuring = [round_of(folder, ways, number) for number in range(rounds)]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:  # this process has held gigabytes
        digests = fresh.submit(with_and_without_digests, float16, 4 * rounds).result()
        warm = fresh.submit(warm_and_memcpy, float16, 4 * rounds).result()
    for what, pairs in (("warm loader, memcpy", warm), ("write ours, raw", writing)):
        print(f"{what:18} " + ", ".join(f"{ours:.2f}/{peer:.2f}" for ours, peer in pairs) + " GB/s")
    print("digests with, without  " + ", ".join(f"{checked:.2f}/{without:.2f}" for checked, without in digests) + " s")
    ratios = {"cold_vs_raw": over(measuring, "float16", "raw", "cold")}
    for codec, state, peer in product(CODECS, STATES, peers):
        prefix = ("" if codec == "float16" else f"{codec}_") + state
        ratios[f"{prefix}_vs_{peer}"] = over(measuring, codec, peer, state)
        ratios[f"{prefix}_cpu_vs_{peer}"] = over(measuring, codec, peer, state, "cpu")
    ratios["warm_vs_memcpy"] = statistics.median(ours / peer for ours, peer in warm)
    ratios["write_vs_raw"] = statistics.median(ours / peer for ours, peer in writing)
    ratios["digest_cost"] = statistics.median(1 - without / checked for checked, without in digests)
    return ways, measuring, ratios


def fastest(folder: Path, peers: Sequence[str], quick: bool) -> Ways:
    """The way of each reader in which an epoch took the fewest seconds, by state; in quick runs the first."""
    found = {name: dict.fromkeys(STATES, next(iter(READERS[name].ways))) for name in (*OURS[: 1 if quick else 2], *peers)}
    for peer in () if quick else peers:
        ways = [way for way in READERS[peer].ways if READERS[peer].lacks(way) is None]
        tried = {way: measured(peer, way, folder, BATCH, CODECS[:1], STATES)[CODECS[0]] for way in ways}
        found[peer] = {state: min(ways, key=lambda way: per_byte(tried[way][state])) for state in STATES}
        for way, took in tried.items():
            print(f"tried {peer}, {way}: " + ", ".join(f"{state} {shown(took[state])}" for state in STATES), flush=True)
    return found


def round_of(folder: Path, ways: Ways, number: int) -> Round:
    """An epoch of each reader over each codec, cold and warm; readers in turn from the first and from the last."""
    took: dict[tuple[str, str, str], Took] = {}
    for name in list(ways)[:: -1 if number % 2 else 1]:
        for way in dict.fromkeys(ways[name].values()):
            states = [state for state in STATES if ways[name][state] == way]
            for codec, by_state in measured(name, way, folder, BATCH, CODECS, states).items():
                took |= {(codec, name, state): one for state, one in by_state.items()}
    for depth, one in measured_disk(folder / "float16").items():
        took["float16", f"raw, {depth}", "cold"] = one
    rates = (f"{' '.join(key)} {shown(one)}" for key, one in took.items() if not key[1].startswith("raw"))
    print(f"round {number}: " + ", ".join(rates), flush=True)
    return took | {("float16", "raw", "cold"): min((took[key] for key in took if key[1].startswith("raw")), key=per_byte)}


def per_byte(took: Took, what: str = "seconds") -> float:
    return took[what] / took["nbytes"]


def shown(took: Took) -> str:
    return f"{1e-9 / per_byte(took):.2f} GB/s ({1e9 * per_byte(took, 'cpu'):.2f} CPU s/GB)"


def over(rounds: Sequence[Round], codec: str, peer: str, state: str, what: str = "seconds") -> float:
    """Median over rounds of what a byte takes a peer, divided by what it takes ours."""
    return statistics.median(
        per_byte(one[codec, peer, state], what) / per_byte(one[codec, "loader", state], what) for one in rounds
    )


def about(size: float, rounds: int, left_out: Sequence[str]) -> str:
    said = [
        f"{date.today().isoformat()}, {os.cpu_count()} cores, {size:.2g} GB of float16 tokens (int8: half as much), rounds:",
        f"{rounds}. GB/s, in parentheses CPU seconds a GB: medians over rounds. Memory: the peak of the process that reads.",
    ]
    return textwrap.fill(" ".join((*said, *(f"Left out: {lack}." for lack in left_out))), 128)


def table(ways: Ways, rounds: Sequence[Round]) -> str:
    """A row for each reader, ours first, peers by speed on float16 out of the page cache."""
    columns = [(codec, state) for codec in CODECS for state in STATES]
    median = lambda what, *key: statistics.median(per_byte(one[key], what) for one in rounds)  # noqa: E731
    rows = [["reader", "way", *(f"{codec}, {state}" for codec, state in columns), "memory"]]
    rows.append(["---"] * len(rows[0]))
    peers = sorted((name for name in ways if name not in OURS), key=lambda name: median("seconds", "float16", name, "cold"))
    for name in ("raw", *(name for name in OURS if name in ways), *peers):
        cells = ["the disk itself: O_DIRECT from beginning to end", ""]
        if name != "raw":
            reader, (cold, warm) = READERS[name], (ways[name][state] for state in STATES)
            number = f" {version(reader.package)}" if reader.package else ""
            cells = [reader.title + number, cold if cold == warm else f"{cold}; warm: {warm}"]
        for codec, state in columns:
            key = (codec, name, state)
            known = key in rounds[0]
            cells.append(f"{1e-9 / median('seconds', *key):.2f} ({1e9 * median('cpu', *key):.2f})" if known else "")
        peak = max(took["peak"] for one in rounds for key, took in one.items() if key[1] == name)
        rows.append([*cells, f"{peak / 1e9:.1f} GB" if peak else ""])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


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
