"""What is written down of a probe's training, so that a later program can tell whether it would train the same."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from probe.aggregators import is_own
from probe.aggregators.own import own_digest
from probe.grid import HeadPlan
from probe.passes import Passes
from probe.select import Selected
from probe.sources import Source

FILE = "trained/record.json"  # the same bytes whenever the same is trained on one machine: DVC compares them
FORMAT_VERSION = 1


def request_of(plan: HeadPlan, passes: Passes, held_out: float, about: Mapping[str, Any]) -> dict[str, Any]:
    """All that a head was asked for with, as plain values; not the words of the command, nor where things lie."""
    own = own_digest(plan.head.aggregator) if is_own(plan.head.aggregator) else None
    head = plan.head.to_dict() | ({"aggregator": plan.head.aggregator.rpartition(":")[2], "file": own} if own else {})
    asked = {
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
    return dict(json.loads(json.dumps(asked)))


def _images(source: Source) -> dict[str, Any]:
    store, rows = source.store, np.asarray(source.rows, np.int64)
    return {
        "key": store.spec.key,
        "joined": source.joined and source.joined.spec.key,
        "rows": xxhash.xxh3_128_hexdigest(rows.tobytes()),
        "labels": xxhash.xxh3_128_hexdigest(np.ascontiguousarray(store.labels[rows]).tobytes()),
        "classes": store.attributes.get("classes"),
        **source.described,
    }


def write_record(folder: Path, request: Mapping[str, Any], chosen: Selected, rehearsed: Mapping[str, Any]) -> None:
    """Write the record of a head into its folder, last of all files: a probe with a record is complete.

    None is written where a pass of it was too short to be rehearsed.
    """
    passes = {"training", "selection"} if chosen.percent else {"training"}
    if {name.partition(",")[0] for name in rehearsed} != passes:
        return
    content = {"format_version": FORMAT_VERSION, "request": request, "percent": chosen.percent, "passes": rehearsed}
    (folder / FILE).write_text(json.dumps(content) + "\n")


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of the head in a folder; None where there is none, or none that we understand."""
    try:
        content = json.loads((folder / FILE).read_text())
        return content if content["format_version"] == FORMAT_VERSION else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
