"""What engines cost: an extraction by one process, by two, and by two tasks of Ray, on the same two cores.

    python -m benchmarks.engines [--quick] [--repeats 3] [--model vit_tiny_patch16_224]

Extracts the quickstart's test images (1,000) with a ViT of random weights, by each in turn. Seconds are those of the whole
command, imports and the start of a local Ray included; CPU seconds those of all its processes, each worker having one thread.
The overhead is in CPU seconds, against one process, as others may use the machine. The last line is JSON.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psutil

from benchmarks.kills import files
from benchmarks.timing import ROOT

ENGINES = {"here": ("--on", "here"), "processes": ("--on", "processes", "--tasks", "2"), "ray": ("--on", "ray", "--tasks", "2")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="once, with the quickstart's ViT")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    given = parser.parse_args()
    model, repeats = ("quickstart-random", 1) if given.quick else (given.model, given.repeats)
    names = [name for name in ENGINES if name != "ray" or find_spec("ray") is not None]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    folder = Path(tempfile.mkdtemp(prefix="beyondcls-engines-"))
    try:
        for _ in range(repeats):
            for name in names:
                shutil.rmtree(folder / name, ignore_errors=True)
                wall, used = timed(command(model, folder / name, *ENGINES[name]))
                seconds[name].append(wall)
                cpu[name].append(used)
                print(f"{name:9} {wall:6.1f} s, {used:6.1f} CPU s", flush=True)
        equal = all(files(folder / name) == files(folder / "here") for name in names)
    finally:
        shutil.rmtree(folder)
    one = statistics.median(cpu["here"])
    overhead = {name: statistics.median(cpu[name]) / one - 1 for name in names}
    for name in names:
        wall = statistics.median(seconds[name])
        print(f"{name:9} {wall:6.1f} s, {statistics.median(cpu[name]):6.1f} CPU s ({overhead[name]:+.0%})")
    print(json.dumps({"equal_bytes": equal, "cpu_overhead": overhead, "evidence": repeats >= 3}))


def command(model: str, out: Path, *engine: str) -> list[str]:
    images = str(ROOT / "quickstart/data/cifar10/test")
    fixed = ("--random-seed", "0", "--shard-rows", "64", "--batch-size", "32", "--workers", "1", "--device", "cpu")
    start = (sys.executable, "-m", "pipelines.cli", "extract", "--encoder", "any", "--model", model)
    return [*start, "--data", images, "--out", str(out), *fixed, *engine]


def timed(arguments: list[str]) -> tuple[float, float]:
    """Seconds of a command, and CPU seconds of all processes below it, as last seen of each."""
    used: dict[int, float] = {}
    begun = time.perf_counter()
    process = subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    while process.poll() is None:
        for one in (own := psutil.Process(process.pid), *own.children(recursive=True)):
            try:
                used[one.pid] = sum(one.cpu_times()[:2])
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.1)
    wall = time.perf_counter() - begun
    if process.returncode:
        assert process.stderr is not None
        raise RuntimeError(process.stderr.read().decode()[-2000:])
    return wall, sum(used.values())


if __name__ == "__main__":
    main()
