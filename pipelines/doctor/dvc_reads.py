"""What the stages of dvc.yaml read of params.yaml. What is missing there stops `dvc repro` before any stage runs."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.parameters.datasets import datasets_of
from pipelines.parameters.params import mapping, read_params, section

DVC_YAML = "dvc.yaml"
NOWHERE = "code/readers"  # a folder that is always there, and has no results
# What to write where a project has nothing of the kind; for other names an empty section.
LINES = {
    "data": "data: data # a folder with a folder for each data set",
    "datasets": "datasets: [] # names of folders there",
    "primary": "primary: null # or what is compared first, declared in advance: { encoder: NAME, head: NAME, over: NAME }",
    "other_probes": f"other_probes: {NOWHERE} # no results of other runs",
    "other_studies": f"other_studies: {NOWHERE} # likewise",
}
NOT_PARAMETERS = ("item", "key")  # of `matrix` and `foreach`


def missing(folder: Path, params: Mapping[str, Any]) -> Iterator[str]:
    """Each name that dvc.yaml reads and params.yaml lacks, with what to add; nothing where there is no dvc.yaml.

    Raises:
        BeyondClsError: a file or a section cannot be read.
    """
    if not (folder / DVC_YAML).is_file():
        return
    described = read_params(folder / DVC_YAML)
    values = described.get("vars") or []
    if not all(isinstance(entry, Mapping) for entry in values):  # names of files: a pipeline that is not ours alone
        return
    assumed = {name for entry in values for name in entry}
    stages = list(section(described, "stages").values())
    for name, needs_value in _names(stages).items():
        if (name not in params and name not in assumed) or (needs_value and params.get(name, ()) is None):
            yield f"there is no {name}, which {DVC_YAML} reads; add a line: {LINES.get(name, f'{name}: {{}}')}"
    for name, keys in _keys(stages).items():
        entries = params.get(name)
        for entry, values in entries.items() if isinstance(entries, Mapping) else ():
            for key in keys:
                if key not in mapping(f"{name}.{entry}", values):
                    yield f"{name}.{entry} has no {key}, which {DVC_YAML} reads; add {key}: {_value(key, params, values)}"


def _names(stages: list[Any]) -> dict[str, bool]:
    """Names of params.yaml that stages read, and whether they need a value: where they are more than watched for changes."""
    interpolated = re.findall(r"\$\{(\w+)", json.dumps(stages))
    watched = [str(name).partition(".")[0] for stage in stages for name in stage.get("params", ())]
    names = dict.fromkeys(watched, False) | dict.fromkeys(interpolated, True)
    return {name: needs_value for name, needs_value in names.items() if name not in NOT_PARAMETERS}


def _keys(stages: list[Any]) -> dict[str, list[str]]:
    """What `foreach` stages read of each entry, by section."""
    keys: dict[str, list[str]] = {}
    for stage in stages:
        if over := re.fullmatch(r"\$\{(\w+)\}", str(stage.get("foreach"))):
            read = re.findall(r"\$\{item\.(\w+)", json.dumps(stage["do"]))
            keys[over[1]] = list(dict.fromkeys([*keys.get(over[1], ()), *read]))
    return keys


def _value(key: str, params: Mapping[str, Any], entry: Any) -> str:
    """What an entry may say there."""
    encoder = next(iter(section(params, "encoders")), "ENCODER")
    values = {
        "dataset": next(iter(datasets_of(params)), "DATASET"),
        "encoder": encoder,
        "joined": mapping(key, entry).get("encoder", encoder),
    }
    return str(values.get(key, key.upper()))
