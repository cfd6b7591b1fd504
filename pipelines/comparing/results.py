"""Results in a folder, by where they are in it: of a project, of a folder of probes, or of one result."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.report.measured import Measure
from pipelines.report.reading import measure_of, read
from probe.result_files import METRICS, read_result
from store import BeyondClsError
from store.moving.receipt import CHECK

# Folders of a project -> patterns of the files of measures in them, and the command that writes these. Heads that `blocks`
# trains are not among them, as its own result has their measures.
KINDS = {
    "probes": (("**/metrics.json",), "beyondcls probe"),
    "studies": (("**/metrics.json",), "beyondcls probe"),
    "segmentation": (("*/metrics.json", "*/*/metrics.json"), "beyondcls segment"),
    "detection": (("*/metrics.json", "*/*/metrics.json"), "beyondcls detect"),
    "localisation": (("*/localisation.json", "*/*/localisation.json"), "beyondcls localise"),
    "blocks": (("*/metrics.json", "*/*/metrics.json"), "beyondcls blocks"),
}
RECEIPTS = "receipts"
OF_HEADS = ("", "probes", "studies")  # kinds whose results are in ENCODER/HEAD; others in ENCODER


@dataclass(frozen=True, order=True)
class Place:
    """Where a result is.

    Attributes:
        kind: the folder of a project that it is in; empty for a head among probes.
        parts: of its path below that folder: data set (and study), encoder, head.
    """

    kind: str
    parts: tuple[str, ...]

    @property
    def dataset(self) -> str:
        """What the encoder's folder is in: the kind of result, a data set and a study, as far as there are any."""
        n = 2 if self.kind in OF_HEADS else 1
        return "/".join((*((self.kind,) if self.kind else ()), *self.parts[:-n]))

    def __str__(self) -> str:
        return "/".join(((self.kind,) if self.kind else ()) + self.parts) or "."


@dataclass(frozen=True)
class Result:
    """What a file of measures and its description say.

    Attributes:
        groups: measures by their names, in the order of the file, by what they are of: a protocol, "box"; "" for a head.
        described: everything else.
    """

    file: Path
    described: Mapping[str, Any]
    groups: Mapping[str, Mapping[str, Measure]] = field(default_factory=dict)


def results_in(folder: Path) -> dict[Place, Result]:
    """Results below a folder: those of a project if it has any of its folders, else all files of measures.

    What is recorded of extractions in a project is among them, without measures.

    Raises:
        BeyondClsError: there are none, or a file is damaged.
    """
    results = dict(_of_project(folder)) if any((folder / name).is_dir() for name in KINDS) else dict(_of_folder(folder))
    if not any(result.groups for result in results.values()):
        raise BeyondClsError(
            f"there are no results in {str(folder)!r}, expected a project with probes/DATASET/ENCODER/HEAD/metrics.json, a "
            "folder of probes, or that of one; run `beyondcls probe` (or `dvc repro`) first, or name another folder"
        )
    return results


def _of_project(folder: Path) -> Iterator[tuple[Place, Result]]:
    for kind, (patterns, command) in KINDS.items():
        for pattern in patterns:
            yield from _matching(folder / kind, pattern, "" if kind == "probes" else kind, command)
    for file in sorted((folder / RECEIPTS).glob(f"*{CHECK}")):
        yield Place(RECEIPTS, (file.name.removesuffix(CHECK),)), read(file, "beyondcls extract", _extraction)


def _of_folder(folder: Path) -> Iterator[tuple[Place, Result]]:
    return _matching(folder, f"**/{METRICS}", "", "beyondcls probe")


def _matching(folder: Path, pattern: str, kind: str, command: str) -> Iterator[tuple[Place, Result]]:
    """Without what is in hidden folders: unfinished runs."""
    for file in sorted(folder.glob(pattern)):
        parts = file.parent.relative_to(folder).parts
        if not any(part.startswith(".") for part in parts):
            yield Place(kind, parts), read(file, command, _result)


def _result(file: Path) -> Result:
    content = read_result(file)
    groups = {name: dict(_measures(values)) for name, values in _groups(content).items()}
    return Result(file, content, {name: measures for name, measures in groups.items() if measures})


def _extraction(file: Path) -> Result:
    """Which versions extracted a feature set on which device, as recorded beside its receipt."""
    content = json.loads(file.read_text(encoding="utf-8"))
    return Result(file, {"extraction": {name: content.get(name) for name in ("key", "versions", "device")}})


def _groups(content: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Values among which measures are, by what these are of."""
    for name, groups in GROUPS.items():
        if name in content:
            return groups(content[name])
    return {"": content} | {
        name: value for name, value in content.items() if isinstance(value, Mapping) and "mean" not in value
    }


def _of_rows(rows: Any) -> dict[str, Mapping[str, Any]]:
    """Of `beyondcls blocks`."""
    return {f"{row['head']}, block {row['block']}, {row['protocol']}": row for row in rows}


def _of_maps(maps: Any) -> dict[str, Mapping[str, Any]]:
    """Of `beyondcls localise`."""
    return {f"{entry['source']} {entry['name']}": entry for entry in maps}


# An entry of a description that holds measures of several things -> these, by names.
GROUPS: dict[str, Callable[[Any], dict[str, Mapping[str, Any]]]] = {"protocols": dict, "rows": _of_rows, "maps": _of_maps}


def _measures(values: Mapping[str, Any]) -> Iterator[tuple[str, Measure]]:
    for name, value in values.items():
        if is_measure(value):
            yield name, measure_of(value)


def is_measure(value: Any) -> bool:
    """Whether this is a number over seeds that could be measured."""
    return isinstance(value, Mapping) and "values" in value and value.get("mean") is not None
