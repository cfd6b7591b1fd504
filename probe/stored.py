"""A probe in its folder: what was trained, and whether the program would write the same files now."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from probe.aggregators import is_custom
from probe.grid import HeadPlan
from probe.head import Head
from probe.record import FILE as RECORD
from probe.result_files import DESCRIPTION, METRICS, read_result
from probe.saved import load_with
from store.format.pretraining import NAMES

WEIGHT = 1e-4  # of a weight over patches
IMAGES = 1e-4  # share of the test images whose prediction may change by rounding
# Commands may be worded differently, more may be known of encoder and head by now, and what computes may be another version.
NOT_COMPARED = ("command", *NAMES, "cost", "versions", "machine")


@dataclass
class Stored:
    """One seed of a probe.

    Attributes:
        curve: as in curves.csv, one entry an epoch.
        result: measures of the test images, as they are in the file.
    """

    head: Head
    curve: list[dict[str, float]]
    result: dict[str, float]


def stored_probe(folder: Path, plan: HeadPlan) -> dict[int, Stored]:
    """The trained heads in a folder, by seed.

    Raises:
        BeyondClsError: files are missing or damaged.
        OSError: files are missing or damaged.
        ValueError: files are missing or damaged.
        KeyError: files are missing or damaged.
    """
    curves: dict[int, list[dict[str, float]]] = {}
    with (folder / "curves.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            values = {name: int(value) if name == "epoch" else float(value) for name, value in row.items() if name != "seed"}
            curves.setdefault(int(row["seed"]), []).append(values)
    name, probe = plan.head.aggregator, {}
    for seed in plan.seeds:
        head, described = load_with(folder / f"trained/seed{seed}", name if is_custom(name) else None)
        probe[seed] = Stored(head, curves[seed], described["result"])
    return probe


def first_difference(folder: Path, rewritten: Path) -> str | None:
    """The first file that would be written differently, in words.

    Curves and measures are the stored ones in both folders, so numbers in text are compared without a tolerance.
    """
    ours, theirs = (_files(place) for place in (folder, rewritten))
    if ours != theirs:
        return f"the files of a probe: {', '.join(sorted(ours ^ theirs))} would differ"
    for name in sorted(ours):
        if not _agree(folder / name, rewritten / name):
            return f"what is written into {name}"
    if _compared(read_result(folder / METRICS)) != _compared(read_result(rewritten / METRICS)):
        return f"what is written into {DESCRIPTION}"
    return None


def _files(folder: Path) -> set[str]:
    return {"curves.csv", *(f"trained/{file.name}" for file in (folder / "trained").iterdir())} - {RECORD}


def _agree(stored: Path, rewritten: Path) -> bool:
    match stored.suffix:
        case ".json":
            return _compared(json.loads(stored.read_text())) == _compared(json.loads(rewritten.read_text()))
        case ".safetensors":
            before, after = load_file(stored), load_file(rewritten)
            return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        case ".npy":
            weights, now = np.load(stored), np.load(rewritten)
            return weights.shape == now.shape and np.allclose(weights, now, rtol=0, atol=WEIGHT, equal_nan=True)
        case ".npz":
            with np.load(stored, allow_pickle=False) as before, np.load(rewritten, allow_pickle=False) as after:
                correct, right = before["correct"], after["correct"]
            return correct.shape == right.shape and bool((correct != right).mean() <= IMAGES)
    return stored.read_bytes() == rewritten.read_bytes()


def _compared(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in NOT_COMPARED}
