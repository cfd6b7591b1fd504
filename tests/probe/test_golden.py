"""What small trainings lead to, in numbers: where these move, heads that are in place are no longer what would be trained.

    python -m tests.probe.test_golden    # writes golden.json, once TRAINING in probe/record.py has been raised

Few steps at high rates and with strong decay, so that whatever is edited shows in some number; and rounding, which differs
between processors and versions of torch, does not.
"""

import csv
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from probe import record
from probe.aggregators import AGGREGATORS
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.result_files import NLL
from probe.run import probe
from tests.features import write_features

FILE = Path(__file__).with_name("golden.json")
REWRITE = "python -m tests.probe.test_golden"
ROUNDING = 1e-4  # relative
POINTS = 4.5  # percentage points, of measures of 69 images: three of them may be classified otherwise
Numbers = dict[str, dict[str, list[float]]]
RECIPE = Recipe(3, 32, 16, "sgd", 2.0, 0.9, 0.05, 1)  # 120 images: the last step of an epoch has 24
OPTIONS = {"ep": {"queries": 8}}  # where an aggregator does not take 24 channels by itself
CLS, ABMILP = HeadSpec("cls"), HeadSpec("abmilp")


def computed(aggregators: Iterable[str] = AGGREGATORS.own) -> Numbers:
    """All numbers, by case and head."""
    with tempfile.TemporaryDirectory() as folder:
        cases = run_all(Path(folder), aggregators)
        return {f"{case.name}/{head.name}": numbers(head) for case in cases for head in sorted(case.iterdir())}


def run_all(folder: Path, aggregators: Iterable[str]) -> Iterator[Path]:
    """The folder of each case, once its heads are trained."""
    options = {"dim": 24, "views": 3, "maps": ("cls", "centre"), "pooled": True, "norm": True}
    sets = [write_features(folder / f"set{i}", n, seed=i, **options) for i, n in enumerate((120, 69))]
    several = [write_features(folder / f"several{i}", n, seed=i, multilabel=True) for i, n in enumerate((120, 69))]
    lars = replace(RECIPE, optimiser="lars", base_lr=20.0, drop_last=True)
    adamw = replace(RECIPE, optimiser="adamw", base_lr=1.0, epochs=8, weight_decay=0.5, order="own", rows_at_once=None)
    grid = {"base_lrs": (0.02, 2.0), "weight_decays": (0.0, 0.5)}
    every = {name: HeadPlan(HeadSpec(name, OPTIONS.get(name, {})), RECIPE, (0,)) for name in aggregators}
    cases = {
        "aggregators": (sets, every, {"views": 1}),
        "sgd": (sets, {"cls": HeadPlan(CLS, RECIPE, (0, 3)), "abmilp": HeadPlan(ABMILP, RECIPE, (0, 3))}, {}),
        "lars": (sets, {"abmilp": HeadPlan(replace(ABMILP, init="uniform"), lars, (0,))}, {"mix_evaluation_view": True}),
        "adamw": (sets, {"cls": HeadPlan(replace(CLS, normalisation="none", final_norm=True), adamw, (0, 1))}, {}),
        "grid": (sets, {"cls": HeadPlan(CLS, RECIPE, (0, 1), **grid), "abmilp": HeadPlan(ABMILP, RECIPE, (0,), **grid)}, {}),
        "streamed": (sets, {"abmilp": HeadPlan(ABMILP, RECIPE, (0,))}, {"placement": "stream"}),
        "draws": (sets, {"cls": HeadPlan(CLS, adamw, (0, 1))}, {"subset": lambda seed, rows: rows[seed::2]}),
        "several": (several, {"abmilp": HeadPlan(ABMILP, RECIPE, (0,))}, {}),
    }
    for case, (pair, plans, options) in cases.items():
        probe(*pair, folder / case, plans, converged=False, **options)
        yield folder / case


def numbers(head: Path) -> dict[str, list[float]]:
    """Losses, measures and parameters of a head."""
    described = json.loads((head / "description.json").read_text())
    found = {"selected": [described["selected"][name] for name in ("base_lr", "weight_decay")]}
    found |= {measure: described[measure]["values"] for measure in ("top1", "map", NLL, "entropy") if measure in described}
    with (head / "curves.csv").open(newline="") as file:
        found["loss"] = [float(row["loss"]) for row in csv.DictReader(file)]
    for seed in described["seeds"]:
        parameters = load_file(head / f"trained/seed{seed}.safetensors")
        found[f"seed {seed}"] = [distance(parameters[name]) for name in sorted(parameters)]
    return {name: [float(f"{value:.7g}") for value in values] for name, values in found.items()}


def distance(values: torch.Tensor) -> float:
    """From fixed numbers that all differ: another value, sign or place changes it."""
    flat = values.double().flatten()
    return (flat - torch.cos(torch.arange(len(flat), dtype=torch.float64))).norm().item()


def moved(before: Numbers, now: Numbers) -> list[str]:
    """Numbers of both that differ by more than rounding."""
    common = [(head, name) for head in before.keys() & now.keys() for name in before[head].keys() & now[head].keys()]
    return [
        f"{head}, {name}: {before[head][name]} before, {now[head][name]} now"
        for head, name in sorted(common)
        if now[head][name] != pytest.approx(before[head][name], rel=ROUNDING, abs=POINTS if name in ("top1", "map") else 0)
    ]


def test_what_is_trained_is_what_training_of_this_version_was():
    golden = json.loads(FILE.read_text())
    known = [name for case, _, name in (of.partition("/") for of in golden["numbers"]) if case == "aggregators"]
    now = computed(known)  # one that was added since disturbs nothing
    assert golden["TRAINING"] == record.TRAINING, f"TRAINING was raised: write the numbers that belong to it: {REWRITE}"
    differ = moved(golden["numbers"], now)
    advice = (
        f"if that is meant, raise TRAINING in probe/record.py, say so in CHANGELOG.md, and write the new numbers: {REWRITE}"
    )
    assert not differ, "\n".join(
        [f"{len(differ)} numbers have moved, so heads in place are no longer kept rightly; {advice}", *differ]
    )
    names, names_now = ({head: [*of_head] for head, of_head in of.items()} for of in (golden["numbers"], now))
    assert names == names_now, f"what is trained here was edited: write its numbers: {REWRITE}"


if __name__ == "__main__":
    golden, now = json.loads(FILE.read_text()) if FILE.exists() else {"numbers": {}}, computed()
    if (differ := moved(golden["numbers"], now)) and golden["TRAINING"] == record.TRAINING:
        raise SystemExit("\n".join([*differ, f"TRAINING in probe/record.py is {record.TRAINING} as before; raise it first"]))
    lines = ",\n".join(f"{json.dumps(head)}: {json.dumps(of_head)}" for head, of_head in now.items())
    FILE.write_text(f'{{"TRAINING": {record.TRAINING}, "numbers": {{\n{lines}\n}}}}\n')
