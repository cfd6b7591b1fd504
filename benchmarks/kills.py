"""Extraction under SIGKILL: any process, at any moment, with any number of tasks, the bytes are those of a quiet run.

    python -m benchmarks.kills [--quick] [--kills 100] [--seed 0]

Extracts the quickstart's training images (5,000, in shards of 64) with its MAE, twice: once undisturbed, once by 1 to 3 tasks
that are killed at a random moment and started again in another number, until `--kills` processes were killed. Then compares
the two feature sets file by file. The last line is JSON: the share of files that are equal, which must be 1.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 kills over the test images: under a minute")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, help="folder that is written; a temporary one by default")
    given = parser.parse_args()
    kills, split = (5, "test") if given.quick else (given.kills, "train")
    folder = Path(tempfile.mkdtemp(prefix="beyondcls-kills-", dir=given.scratch))
    try:
        began = time.perf_counter()
        wait(start(folder / "quiet", split, 0, 1))
        quiet = time.perf_counter() - began
        killed, starts = disturbed(folder / "killed", split, kills, quiet, random.Random(given.seed))
        one, other = files(folder / "quiet"), files(folder / "killed")
        equal = sum(one.get(name) == content for name, content in other.items())
        left = [str(path.relative_to(folder)) for path in folder.rglob(".staging/*")]
    finally:
        shutil.rmtree(folder)
    print(
        f"{killed} processes killed of {starts} started; {equal} of {len(one | other)} files equal; left: {left or 'nothing'}"
    )
    print(json.dumps({"equal_files": equal / len(one | other)}))


def disturbed(out: Path, split: str, kills: int, quiet: float, chance: random.Random) -> tuple[int, int]:
    """Extract with this many kills; how many there were, and how many processes were started."""
    killed = starts = 0
    while killed < kills:
        n = chance.randint(1, 3)
        tasks = [start(out, split, task, n) for task in range(n)]
        starts += n
        # From the first imports to beyond the end, so that every phase is hit.
        time.sleep(chance.uniform(0.3, 1.1) * min(quiet, 12))
        for task in tasks:
            killed += task.poll() is None
            task.send_signal(signal.SIGKILL)
            task.wait()
        if (out / "zarr.json").exists():  # the set is complete, so kills have no effect; start over
            print(f"{killed} killed, published", flush=True)
            if killed < kills:
                shutil.rmtree(out)
    wait(start(out, split, 0, 1))
    return killed, starts + 1


def start(out: Path, split: str, task: int, n: int) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-c", "from pipelines.cli import app; app()", "extract", "--encoder", "quickstart-mae"),
        *("--data", f"quickstart/data/cifar10/{split}", "--out", str(out), "--shard-rows", "64", "--device", "cpu"),
        *("--task-id", str(task), "--n-tasks", str(n), "--batch-size", "64"),
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait(task: subprocess.Popen[bytes]) -> None:
    _, error = task.communicate()
    if task.returncode:
        raise RuntimeError(error.decode()[-2000:])


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


if __name__ == "__main__":
    main()
