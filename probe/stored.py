"""A probe in its folder: what was trained, and whether the program would write the same files now."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from probe.aggregators import is_own
from probe.grid import HeadPlan
from probe.head import Head
from probe.record import FILE as RECORD
from probe.saved import load_with
from store.format.pretraining import NAMES

WEIGHT = 1e-4  # of a weight over patches
IMAGES = 1e-4  # share of the test images that may be answered otherwise, by rounding
NOT_COMPARED = ("command", *NAMES)  # the same may be asked for in other words; what is known of the encoder may be more now


@dataclass
class Stored:
    """One seed of a probe.

    Attributes:
        curve: as in curves.csv, one entry an epoch.
        result: measures of the test images, as they were written.
    """

    head: Head
    curve: list[dict[str, float]]
    result: dict[str, float]


def stored_probe(folder: Path, plan: HeadPlan) -> dict[int, Stored]:
    """By seed.

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
        head, described = load_with(folder / f"trained/seed{seed}", name if is_own(name) else None)
        probe[seed] = Stored(head, curves[seed], described["result"])
    return probe


def first_difference(folder: Path, again: Path) -> str | None:
    """The first file that would not be written as it is, in words.

    The curves, and what was measured, are in both as they were; so that numbers in text are compared without a tolerance.
    """
    ours, theirs = (_files(place) for place in (folder, again))
    if ours != theirs:
        return f"the files of a probe: {', '.join(sorted(ours ^ theirs))} would be other ones"
    for name in sorted(ours):
        if not _agree(folder / name, again / name):
            return f"what is written into {name}"
    return None


def _files(folder: Path) -> set[str]:
    return {"curves.csv", "metrics.json", *(f"trained/{file.name}" for file in (folder / "trained").iterdir())} - {RECORD}


def _agree(one: Path, other: Path) -> bool:
    match one.suffix:
        case ".json":
            return _said(one) == _said(other)
        case ".safetensors":
            tensors, again = load_file(one), load_file(other)
            return tensors.keys() == again.keys() and all(torch.equal(tensors[name], again[name]) for name in tensors)
        case ".npy":
            weights, now = np.load(one), np.load(other)
            return weights.shape == now.shape and np.allclose(weights, now, rtol=0, atol=WEIGHT, equal_nan=True)
        case ".npz":
            with np.load(one, allow_pickle=False) as before, np.load(other, allow_pickle=False) as after:
                correct, right = before["correct"], after["correct"]
            return correct.shape == right.shape and bool((correct != right).mean() <= IMAGES)
    return one.read_bytes() == other.read_bytes()


def _said(file: Path) -> Any:
    content = json.loads(file.read_text())
    return {name: value for name, value in content.items() if name not in NOT_COMPARED}
