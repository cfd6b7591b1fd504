"""What starting costs: commands that find their work done, and the heads of a project under DVC, alone and sharing a pass.

    python -m benchmarks.starting [--quick] [--heads 12] [--images 1000] [--rounds 3]

A project as `beyondcls init` writes it, of images made here and an encoder of random weights, with this many heads of three
seeds each, extracted once. Then, interleaved, on copies of it: `stages`, `dvc repro`, which trains one head after another, each
in its own process; `every`, `beyondcls probe --every`, where all share a pass, and `dvc repro`, which finds them done;
`commit`, the same with `dvc commit --force` in between, which records what is done without starting anything.

`every` and `commit`: seconds of `stages` / of theirs. `noop`, `status`: those of a second `dvc repro`, and `dvc status`, / of
`stages`. `done_probe`, `done_extract`, `help`: those of a command whose work is done, and of `beyondcls --help`, / of `import
torch`, each in its own process. The last line is JSON.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from benchmarks.timing import ROOT, conclude

DATASET, ENCODER, N_CLASSES = "images", "vit_tiny_patch16_224", 10
DVC, PROBE = (sys.executable, "-m", "dvc"), (sys.executable, "-m", "pipelines.cli", "probe", "--every")
TARGETS = ("code", "recipes", "code-data", "probe")
WAYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "stages": ((*DVC, "repro", *TARGETS),),
    "every": (PROBE, (*DVC, "repro", *TARGETS)),
    "commit": (PROBE, (*DVC, "commit", "--force", "probe"), (*DVC, "repro", *TARGETS)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 heads, 60 images, one round, without `commit`; no evidence")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    n_heads, n_images, rounds = (2, 60, 1) if given.quick else (given.heads, given.images, given.rounds)
    ways = ["stages", "every"] if given.quick else [*WAYS]
    with tempfile.TemporaryDirectory(prefix="beyondcls-benchmark-") as scratch:
        folder = Path(scratch)
        write_images(folder / DATASET, n_images)
        project = write_project(folder, n_heads)
        run(project, *DVC, "repro", "code", "recipes", "code-data", "extract")
        seconds: dict[str, list[float]] = {way: [] for way in (*ways, "noop", "status")}
        for number in range(rounds):
            for way in ways if number % 2 == 0 else ways[::-1]:
                copy = folder / f"{way}-{number}"
                shutil.copytree(project, copy, symlinks=True)
                seconds[way].append(sum(run(copy, *command) for command in WAYS[way]))
            seconds["noop"].append(run(copy, *DVC, "repro", *TARGETS))
            seconds["status"].append(run(copy, *DVC, "status"))
        medians = {way: statistics.median(taken) for way, taken in seconds.items()}
        for way, taken in seconds.items():
            print(f"{way:8} {medians[way]:7.1f} s ({min(taken):.1f} to {max(taken):.1f})")
        ratios = {way: medians["stages"] / medians[way] for way in ways if way != "stages"}
        ratios |= {name: medians[name] / medians["stages"] for name in ("noop", "status")}
        ratios |= starts(copy, rounds)
    conclude(ratios, n_heads >= 12 and rounds >= 3)


def write_images(folder: Path, n: int) -> None:
    """PNGs of noise, train/CLASS/ and test/CLASS/: a class is a colour."""
    generator = np.random.default_rng(0)
    for split, of_split in (("train", n), ("test", n // 3)):
        for i in range(of_split):
            pixels = generator.integers(0, 128, (32, 32, 3), np.uint8) + np.uint8(12 * (i % N_CLASSES))
            (folder / split / f"{i % N_CLASSES}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / split / f"{i % N_CLASSES}" / f"{i:05}.png")


def write_project(folder: Path, n_heads: int) -> Path:
    project = folder / "project"
    init = ("init", str(project), "--data", str(folder / DATASET), "--encoder", ENCODER, "--head", "abmilp")
    run(folder, sys.executable, "-m", "pipelines.cli", *init)
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["encoders"][ENCODER] = {"random_seed": 0, "input_size": 32}
    params["heads"] = {f"abmilp-{i}": {"aggregator": "abmilp", "base_lrs": [0.1 + i / 100]} for i in range(n_heads)}
    params["probe"] = {"seeds": [0, 1, 2], "epochs": 10, "warmup_epochs": 1, "batch_size": 64}
    (project / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    run(project, "git", "init", "-q")
    run(project, *DVC, "init", "-q")
    return project


def starts(project: Path, rounds: int) -> dict[str, float]:
    """Seconds of commands that have nothing to do, as multiples of `import torch`: medians of interleaved rounds."""
    sets = [f"features/{ENCODER}-{DATASET}-{split}" for split in ("train", "test")]
    beyondcls = (sys.executable, "-m", "pipelines.cli")
    head = (
        "probe",
        "--params",
        "params.yaml",
        "--dataset",
        DATASET,
        "--encoder",
        ENCODER,
        "--head",
        "abmilp-0",
        "--skip-absent",
    )
    named = ("--encoder", ENCODER, "--dataset", DATASET, "--split", "train", "--params", "params.yaml")
    receipt = ("--receipt", f"receipts/{ENCODER}-{DATASET}-train.json", "--update")
    commands = {
        "torch": (sys.executable, "-c", "import torch"),
        "help": (*beyondcls, "--help"),
        "done_probe": (
            *beyondcls,
            *head,
            "--features",
            sets[0],
            "--test",
            sets[1],
            "--out",
            f"probes/{DATASET}/{ENCODER}/abmilp-0",
        ),
        "done_extract": (*beyondcls, "extract", *named, "--split", "train", "--out", sets[0], *receipt),
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            seconds[name].append(run(project, *command))
    medians = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}
    print(", ".join(f"{name} {taken:.2f} s" for name, taken in medians.items()))
    return {name: taken / medians["torch"] for name, taken in medians.items() if name != "torch"}


def run(folder: Path, *command: str) -> float:
    """Seconds of a command that must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
