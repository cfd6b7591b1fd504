"""The record of a probe's training, from which a later version of the program can tell whether it would train the same."""

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
from probe.select import Selected
from probe.sources import Source

FILE = "trained/record.json"  # the same bytes whenever the same head is trained on one machine: DVC compares them
FORMAT_VERSION = 1


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


def write_record(folder: Path, request: Mapping[str, Any], chosen: Selected, rehearsed: Mapping[str, Any]) -> None:
    """Write the record of a head into its folder, last of all files: a probe with a record is complete.

    Nothing is written where one of its passes was too short to be rehearsed.
    """
    passes = {"training", "selection"} if chosen.tried else {"training"}
    if {name.partition(",")[0] for name in rehearsed} != passes:
        return
    tried = [asdict(setting) for setting in chosen.tried]
    content = {"format_version": FORMAT_VERSION, "request": request, "tried": tried, "passes": rehearsed}
    (folder / FILE).write_text(json.dumps(content) + "\n")


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of the head in a folder; None if it is missing, damaged or of another format version."""
    try:
        content = json.loads((folder / FILE).read_text())
        return content if content["format_version"] == FORMAT_VERSION else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
