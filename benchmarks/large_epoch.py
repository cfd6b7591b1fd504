"""One epoch of many heads from a set that is larger than memory, at ImageNet's shape: speed, cores and memory.

    python -m benchmarks.large_epoch [--quick] [--gb 60] [--device cpu] [--scratch FOLDER]

Writes [n, 196, 768] float16, tokens of a real ViT repeated, of 1,000 classes, and takes one shuffled epoch twice, each in its
own process, past the page cache: of the loader alone, and of `probe` with 8 AbMILP heads (4 rates, 2 seeds) in one pass.

`loader_vs_disk`: bytes a second of the loader / of the disk alone, the best of several ways to read the first shards
(benchmarks.disk). `cores_left`: the share of the cores' time that the loader leaves to training, 0 to 1. `heads_vs_loader`:
bytes a second with the heads / of the loader alone; on a CPU the heads decide. `memory_loader`, `memory_heads`: most memory in
the last quarter of the epoch, which the heads end with an evaluation, / in the second: 1 if nothing grows. GB/s, cores and
memory are printed. The last line is JSON; it is evidence if the set is larger than twice the memory.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import disk
from benchmarks.data import NAME, rows_for, tokens, write_store
from benchmarks.timing import ROOT, conclude, forget

N_CLASSES, SHARD_ROWS, BATCH = 1000, 256, 1024
DISK_NBYTES = 6e9  # of shards that are read past the store
INTERVAL = 0.5  # seconds between two looks at the memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="0.6 GB: under a minute, and no evidence")
    parser.add_argument("--gb", type=float, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scratch", type=Path, help="folder on the disk to measure")
    parser.add_argument("--only", choices=("loader", "heads"), help=argparse.SUPPRESS)
    parser.add_argument("folder", type=Path, nargs="?", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(
            json.dumps(epoch_of_loader(given.folder) if given.only == "loader" else epoch_of_heads(given.folder, given.device))
        )
        return
    with tempfile.TemporaryDirectory(prefix="beyondcls-benchmark-", dir=given.scratch) as scratch:
        folder, source, began = Path(scratch), tokens(), time.perf_counter()
        n = rows_for(int((0.6 if given.quick else given.gb) * 1e9))
        write_store(folder / "store", source, n, SHARD_ROWS, N_CLASSES)
        write_store(folder / "test", source, N_CLASSES, SHARD_ROWS, N_CLASSES)
        nbytes = sum(file.stat().st_size for file in (folder / "store").rglob("*") if file.is_file())
        seconds = time.perf_counter() - began
        print(f"{n:,} rows, {nbytes / 1e9:.1f} GB, written in {seconds:.0f} s ({nbytes / seconds / 1e9:.2f} GB/s)")
        raw = rate_of_disk(folder)
        measured = {}
        for name in ("loader", "heads"):
            forget(folder)
            measured[name] = measured_apart(name, folder, given.device)
            seconds, cpu = measured[name]["seconds"], measured[name]["cpu"]
            middle, last = (nbytes_of / 1e9 for nbytes_of in measured[name]["memory"])
            print(
                f"{name:7} {seconds:7.1f} s, {nbytes / seconds / 1e9:.2f} GB/s, {cpu / seconds:.2f} of {os.cpu_count()} cores"
            )
            print(f"        memory: {middle:.2f} GB in the second quarter, {last:.2f} GB in the last")
    loader, heads = measured["loader"], measured["heads"]
    print(f"disk    {raw / 1e9:.2f} GB/s")
    ratios = {
        "loader_vs_disk": nbytes / loader["seconds"] / raw,
        "cores_left": 1 - loader["cpu"] / loader["seconds"] / (os.cpu_count() or 1),
        "heads_vs_loader": loader["seconds"] / heads["seconds"],
        **{f"memory_{name}": one["memory"][1] / one["memory"][0] for name, one in measured.items()},
    }
    conclude(ratios, nbytes > 2 * psutil.virtual_memory().total)


def rate_of_disk(folder: Path) -> float:
    """Bytes a second, the best way."""
    files = sorted(file for file in (folder / "store" / NAME / "c").rglob("*") if file.is_file())
    chosen = files[: max(1, int(DISK_NBYTES / files[0].stat().st_size))]
    rates = []
    for size in disk.SIZES.values():
        for depth in (2, 4, 8):
            began = time.perf_counter()
            rates.append(disk.read(chosen, depth, size) / (time.perf_counter() - began))
    return max(rates)


def measured_apart(name: str, folder: Path, device: str) -> dict[str, Any]:
    command = (sys.executable, "-m", "benchmarks.large_epoch", "--only", name, "--device", device, str(folder))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def epoch_of_loader(folder: Path) -> dict[str, Any]:
    from store import FeatureStore, Loader

    store = FeatureStore.open(folder / "store")
    loader = Loader({"patch": store.array(NAME)}, store.labels, batch_size=BATCH, placement="stream", dtype=None)
    with watched() as taken:
        for _ in loader.epoch():
            pass
    return taken


def epoch_of_heads(folder: Path, device: str) -> dict[str, Any]:
    import torch

    from probe.grid import HeadPlan, HeadSpec
    from probe.recipe import Recipe
    from probe.run import probe
    from store import FeatureStore

    plans = {
        f"abmilp-{rate}": HeadPlan(
            HeadSpec("abmilp"), Recipe(epochs=1, batch_size=BATCH, warmup_epochs=0, base_lr=rate), seeds=(0, 1)
        )
        for rate in (0.01, 0.03, 0.1, 0.3)
    }
    training, test = (FeatureStore.open(folder / name) for name in ("store", "test"))
    with watched() as taken:
        probe(training, test, folder / "probes", plans, device=torch.device(device), placement="stream", converged=False)
    return taken


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """Gives seconds, CPU seconds, and the most memory (resident bytes) in the second and in the last quarter of a block."""
    looks, ended, process = [], threading.Event(), psutil.Process()

    def look() -> None:
        while not ended.wait(INTERVAL):
            looks.append(process.memory_info().rss)

    thread, taken = threading.Thread(target=look), dict[str, Any]()
    began, used = time.perf_counter(), cpu_s()
    thread.start()
    try:
        yield taken
    finally:
        taken |= {"seconds": time.perf_counter() - began, "cpu": cpu_s() - used}
        ended.set()
        thread.join()
    n = len(looks) or 1
    quarters = looks[n // 4 : n // 2], looks[3 * n // 4 :]
    taken["memory"] = [max(quarter, default=process.memory_info().rss) for quarter in quarters]


def cpu_s() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


if __name__ == "__main__":
    main()
