"""What a head was trained from, kept with it: where that is the same, the head stays in place and is not trained again."""

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError

from probe.aggregators import code_of, is_custom
from probe.grid import HeadPlan, Member
from probe.metrics import MULTILABEL, PER_IMAGE
from probe.passes import HeadPasses, Outcome
from probe.ranks import broadcast_from_first
from probe.result_files import METRICS, read_result
from probe.results import RECORD, update_description
from probe.saved import load_with
from probe.select import Selected, Tried, best_setting
from probe.sources import Source
from store import BeyondClsError
from store.format.pretraining import pretraining_fields

FORMAT_VERSION = 1
# Raise it with an edit after which a head that trains from the same request has other numbers, beyond rounding: parameters,
# losses, the setting that is selected, measures. Heads that are in place are trained again then. tests/probe/test_golden.py
# fails where numbers have moved and this has not.
TRAINING = 1
DAMAGED = (BeyondClsError, OSError, EOFError, ValueError, KeyError, TypeError, IndexError, BadZipFile, SafetensorError)


def request_of(plan: HeadPlan, passes: HeadPasses, held_out: float, about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a head's training was requested with, as plain values, except the command line and paths."""
    code = code_of(plan.head.aggregator)
    head = plan.head.to_dict() | ({"aggregator": plan.head.aggregator.rpartition(":")[2], "file": code} if code else {})
    request = {
        "head": head,
        "recipe": asdict(plan.recipe),
        "seeds": plan.seeds,
        "settings": plan.settings,
        "held_out": held_out if len(plan.settings) > 1 else None,
        "training": _describe_images(passes.training),
        "test": _describe_images(passes.test),
        "views": list(passes.views),
        "processes": passes.world_size,
        "notes": {name: value for name, value in about.items() if name != "command"},
    }
    if passes.draws:
        request["draws"] = [_describe_images(passes.learnt_by(seed))["rows"] for seed in plan.seeds]
    if plugins := PER_IMAGE.plugins() | MULTILABEL.plugins():
        request["metrics"] = {name: plugin.digest() for name, plugin in plugins.items()}
    return dict(json.loads(json.dumps(request)))


def _describe_images(source: Source) -> dict[str, Any]:
    store, rows = source.store, np.asarray(source.rows, np.int64)
    return {
        "key": store.spec.key,
        "joined": source.joined and source.joined.spec.key,
        "rows": xxhash.xxh3_128_hexdigest(rows.tobytes()),
        "labels": xxhash.xxh3_128_hexdigest(np.ascontiguousarray(store.labels[rows]).tobytes()),
        "classes": store.attributes.get("classes"),
        **source.description,
    }


def write_record(folder: Path, request: Mapping[str, Any], chosen: Selected) -> None:
    """Write the record of a head into its folder, last of all files: a probe with a record is complete."""
    tried = [asdict(setting) for setting in chosen.tried]
    content = {"format_version": FORMAT_VERSION, "training_version": TRAINING, "request": request, "tried": tried}
    (folder / RECORD).write_text(json.dumps(content) + "\n")


def read_record(folder: Path) -> dict[str, Any]:
    """The record of the head in a folder.

    Raises:
        BeyondClsError: there is none, or one of another format version.
        ValueError, KeyError: it is damaged.
    """
    file = folder / RECORD
    if not file.is_file():
        raise BeyondClsError(f"there is no {RECORD}: it is older, unfinished, or was trained with the encoder in the loop")
    content = dict(json.loads(file.read_text()))
    if (version := content["format_version"]) != FORMAT_VERSION:
        raise BeyondClsError(f"{RECORD} is of format version {version}, expected {FORMAT_VERSION}")
    return content


def _differing_paths(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths such as `recipe.epochs` at which two plain values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted(a.keys() | b.keys())
        return [p for n in names for p in _differing_paths(a.get(n), b.get(n), f"{path}.{n}" if path else n)]
    return [] if a == b else [path]


def heads_in_place(
    plans: Mapping[str, HeadPlan],
    passes: HeadPasses,
    held_out: float,
    folders: Mapping[str, Path],
    about: Mapping[str, Any],
) -> dict[str, tuple[dict[str, Any], Selected]]:
    """Heads of one group that need not be trained again: what is measured and described of each, and its setting.

    Those are heads that were trained for exactly this request, by training as it is now (`probe.record`), whose files are
    complete and can be read. Nothing of them is changed, except what description.json says about the encoder's pretraining if
    the feature set says otherwise by now. For the other heads that are in place, `passes.say` is called with the reason to
    train again. Of several processes the first decides.
    """
    kept = {}
    for name, plan in plans.items():
        folder = folders[name]
        if passes.rank or not (folder / METRICS).is_file():
            continue
        try:
            record = read_record(folder)
            version = record.get("training_version", 1)
            if differ := _differing_paths(record["request"], request_of(plan, passes, held_out, about)):
                why = f"trained again, the request differs ({', '.join(differ[:3])})"
            elif version != TRAINING:
                why = f"trained again, training has changed since: TRAINING {version}, now {TRAINING}"
            else:
                tried = [Tried(**{**setting, "percent": tuple(setting["percent"])}) for setting in record["tried"]]
                one = len(plan.settings) == 1
                chosen = Selected(*plan.settings[0]) if one else best_setting(name, plan, tried, passes, held_out)
                stored_outcomes(name, plan, passes, folder, chosen)
                kept[name] = update_description(folder, pretraining_fields(passes.training.store.attributes)), chosen
                why = "kept, it was trained from the same request"
        except DAMAGED as error:
            why = f"trained again, its files are incomplete or damaged ({type(error).__name__}: {error})"
        passes.say(f"{folder}: {why}")
    return broadcast_from_first(kept)


def stored_outcomes(name: str, plan: HeadPlan, passes: HeadPasses, folder: Path, chosen: Selected) -> list[Outcome]:
    """The trained seeds of a head, as its files have them; the mean of their weights is the first one's.

    Raises:
        BeyondClsError: files are missing or damaged, or not of one run.
        OSError, ValueError, KeyError: files are missing or damaged.
    """
    measures, aggregator, curves = read_result(folder / METRICS), plan.head.aggregator, dict[int, list[dict[str, float]]]()
    with (folder / "curves.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            values = {name: int(value) if name == "epoch" else float(value) for name, value in row.items() if name != "seed"}
            curves.setdefault(int(row["seed"]), []).append(values)
    outcomes = []
    for i, seed in enumerate(plan.seeds):
        head, described = load_with(folder / f"trained/seed{seed}", aggregator if is_custom(aggregator) else None)
        passes.use_vectors(head)
        result, curve = described["result"], curves[seed]
        if len(curve) != plan.recipe.epochs:
            raise ValueError(f"curves.csv has {len(curve)} epochs of seed {seed}, expected {plan.recipe.epochs}")
        if differ := [measure for measure, value in result.items() if repr(measures[measure]["values"][i]) != repr(value)]:
            raise ValueError(f"{differ[0]} of seed {seed} is another one in trained/seed{seed}.json than in {METRICS}")
        outcomes.append(Outcome(Member(name, chosen.base_lr, chosen.weight_decay, seed), head, curve, result))
    if "entropy" in measures:
        outcomes[0].weights = torch.from_numpy(_check_per_image(np.load(folder / "trained/weights.npy"), passes, 0))
    if not passes.test.store.multilabel:
        with np.load(folder / "trained/correct.npz", allow_pickle=False) as arrays:
            for outcome, right in zip(outcomes, _check_per_image(arrays["correct"], passes, 1), strict=True):
                outcome.correct = torch.from_numpy(right)
    return outcomes


def _check_per_image(values: np.ndarray, passes: HeadPasses, axis: int) -> np.ndarray:
    if values.ndim != 2 or values.shape[axis] != len(passes.test.rows):
        raise ValueError(f"an array of shape {values.shape} is not of the {len(passes.test.rows):,} test images")
    return values
