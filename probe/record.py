"""What a head was trained from, kept beside it: where that is the same, it is not trained again."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from probe.aggregators import code_of
from probe.grid import HeadPlan
from probe.metrics import MULTILABEL, PER_IMAGE
from probe.passes import Passes
from probe.select import Selected, Tried, best_setting
from probe.sources import Source
from store import BeyondClsError

FILE = "trained/record.json"  # the same bytes whenever the same head is trained on one machine: DVC compares them
FORMAT_VERSION = 1
# Raise it with an edit after which a head that trains from the same request has other numbers, beyond rounding: parameters,
# losses, the setting that is selected, measures. Heads that are in place are trained again then. tests/probe/test_golden.py
# fails where numbers have moved and this has not.
TRAINING = 1


def request_of(plan: HeadPlan, passes: Passes, held_out: float, about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a head's training was requested with, as plain values, except the command line and paths."""
    code = code_of(plan.head.aggregator)
    head = plan.head.to_dict() | ({"aggregator": plan.head.aggregator.rpartition(":")[2], "file": code} if code else {})
    request = {
        "head": head,
        "recipe": asdict(plan.recipe),
        "seeds": plan.seeds,
        "settings": plan.settings,
        "held_out": held_out if len(plan.settings) > 1 else None,
        "training": _images(passes.training),
        "test": _images(passes.test),
        "views": list(passes.views),
        "processes": passes.world_size,
        "notes": {name: value for name, value in about.items() if name != "command"},
    }
    if passes.draws:
        request["draws"] = [_images(passes.learnt_by(seed))["rows"] for seed in plan.seeds]
    if metrics := {
        name: plugin.digest() for registry in (PER_IMAGE, MULTILABEL) for name, plugin in registry.plugins().items()
    }:
        request["metrics"] = metrics
    return dict(json.loads(json.dumps(request)))


def _images(source: Source) -> dict[str, Any]:
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
    (folder / FILE).write_text(json.dumps(content) + "\n")


def read_record(folder: Path) -> dict[str, Any]:
    """The record of the head in a folder.

    Raises:
        BeyondClsError: there is none, or one of another format version.
        ValueError: it is damaged.
        KeyError: it is damaged.
    """
    file = folder / FILE
    if not file.is_file():
        raise BeyondClsError(f"there is no {FILE}: it is older, unfinished, or was trained with the encoder in the loop")
    content = dict(json.loads(file.read_text()))
    if (version := content["format_version"]) != FORMAT_VERSION:
        raise BeyondClsError(f"{FILE} is of format version {version}, expected {FORMAT_VERSION}")
    return content


def difference(record: Mapping[str, Any], request: Mapping[str, Any]) -> str | None:
    """What has changed since a head was trained, in words; None: nothing.

    Args:
        record: of the head; one without a version of training is of the first.
        request: of now.
    """
    if differ := _differing_paths(record["request"], request):
        return f"the request differs ({', '.join(differ[:3])})"
    before = record.get("training_version", 1)
    return None if before == TRAINING else f"training has changed since: TRAINING {before}, now {TRAINING}"


def selected_before(name: str, plan: HeadPlan, record: Mapping[str, Any], passes: Passes, held_out: float) -> Selected:
    """The setting that a head with this record was trained with."""
    if len(plan.settings) == 1:
        return Selected(*plan.settings[0])
    tried = [Tried(**{**setting, "percent": tuple(setting["percent"])}) for setting in record["tried"]]
    return best_setting(name, plan, tried, passes, held_out)


def _differing_paths(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths such as `recipe.epochs` at which two plain values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted(a.keys() | b.keys())
        return [p for n in names for p in _differing_paths(a.get(n), b.get(n), f"{path}.{n}" if path else n)]
    return [] if a == b else [path]
