"""Results in a folder, of a project, of probes or of one head: what each file of measures says, and all numbers as rows."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.report.kinds import KINDS, LINEAR, OF_HEADS, RECEIPTS, command_of
from pipelines.report.measured import Measure
from pipelines.report.reading import files_in, measures_in, read
from probe.result_files import METRICS, read_result
from store import BeyondClsError
from store.format.pretraining import UNKNOWN, UNTRAINED, Pretraining
from store.moving.receipt import CHECK


@dataclass(frozen=True)
class ResultFile:
    """What a file of measures and its description say.

    Attributes:
        kind: the folder of a project that it is in; "probes" for a head in none.
        above: folders that the encoder's is in: a data set and a study, as far as there are any.
        encoder, head: their folders, as far as the path has them; no head for results without one.
        described: everything, measures among it.
        groups: measures by their names, in the order of the file, by what they belong to: a protocol, "box"; "" for a head.
    """

    kind: str
    above: tuple[str, ...]
    encoder: str
    head: str
    file: Path
    described: Mapping[str, Any]
    groups: Mapping[str, Mapping[str, Measure]] = field(default_factory=dict)


ResultFiles = Mapping[str, ResultFile]  # by the path of their folders: DATASET/ENCODER/HEAD, studies/…, segmentation/…


def results_in(folder: Path) -> dict[str, ResultFile]:
    """Results below a folder: those of a project if it has any of its folders, else all files of measures.

    What is recorded of extractions in a project is among them, without measures.

    Raises:
        BeyondClsError: there are none, or a file is damaged.
    """
    is_project = any((folder / name).is_dir() for name in KINDS)
    results = dict(_project_results(folder) if is_project else _matching_results(folder, f"**/{METRICS}", "probes"))
    if not any(result.groups for result in results.values()):
        raise BeyondClsError(
            f"there are no results in {str(folder)!r}, expected a project with probes/DATASET/ENCODER/HEAD/metrics.json, a "
            "folder of probes, or that of one; run `beyondcls probe` (or `dvc repro`) first, or name another folder"
        )
    return results


def _project_results(folder: Path) -> Iterator[tuple[str, ResultFile]]:
    for kind in KINDS:
        named = "localisation.json" if kind == "localisation" else METRICS
        for pattern in (f"**/{named}",) if kind in OF_HEADS else (f"*/{named}", f"*/*/{named}"):
            yield from _matching_results(folder / kind, pattern, kind)
    for file in files_in(folder / RECEIPTS, f"*{CHECK}"):
        yield f"{RECEIPTS}/{file.name.removesuffix(CHECK)}", read(file, "beyondcls extract", _read_extraction)


def _matching_results(folder: Path, pattern: str, kind: str) -> Iterator[tuple[str, ResultFile]]:
    """Without what is in hidden folders: unfinished runs."""
    for file in files_in(folder, pattern):
        parts = file.parent.relative_to(folder).parts
        if not any(part.startswith(".") for part in parts):
            name = "/".join(parts if kind == "probes" else (kind, *parts)) or "."
            yield name, read(file, command_of(kind), partial(_result, kind, parts))


def _result(kind: str, parts: tuple[str, ...], file: Path) -> ResultFile:
    content = read_result(file)
    of_all = {name: measures_in(entry) for name, entry in _entries(content).items()}
    groups = {name: measures for name, measures in of_all.items() if measures}
    if kind not in OF_HEADS:
        return ResultFile(kind, parts[:-1], parts[-1], "", file, content, groups)
    encoder, head = ("", "", *parts)[-2:]
    return ResultFile(kind, parts[:-2], encoder, head, file, content, groups)


def _read_extraction(file: Path) -> ResultFile:
    """Which versions extracted a feature set on which device, as recorded next to its receipt."""
    content = json.loads(file.read_text(encoding="utf-8"))
    described = {"extraction": {name: content.get(name) for name in ("key", "versions", "device")}}
    return ResultFile(RECEIPTS, (), "", "", file, described)


def _entries(content: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Entries that have measures of their own, by name."""
    for name, entries in GROUPS.items():
        if name in content:
            return entries(content[name])
    return {"": content} | {
        name: value for name, value in content.items() if isinstance(value, Mapping) and "mean" not in value
    }


def _vector_name(one: Mapping[str, Any]) -> str:
    return f"{one['encoder']} {one['vector']}, block {one['block']}"


# An entry of a description that holds measures of several things -> these, by names: of segment, blocks, geometry, similarity,
# norms, localise.
GROUPS: dict[str, Callable[[Any], dict[str, Mapping[str, Any]]]] = {
    "protocols": dict,
    "rows": lambda rows: {f"{row['head']}, block {row['block']}, {row['protocol']}": row for row in rows},
    "vectors": lambda vectors: {f"{one['vector']}, block {one['block']}": one for one in vectors},
    "searches": lambda searches: {f"{one['vector']}, block {one['block']}, {one['protocol']}": one for one in searches},
    "pairs": lambda pairs: {f"{_vector_name(pair['a'])} and {_vector_name(pair['b'])}": pair for pair in pairs},
    "blocks": lambda blocks: {f"block {one['block']}": one for one in blocks},
    "maps": lambda maps: {f"{entry['source']} {entry['name']}": entry for entry in maps},
}


COLUMNS = [
    *("kind", "dataset", "study", "split", "encoder", "family", "block", "head", "options", "recipe"),
    *("seed", "metric", "value", "n", "folder"),
]  # of the long table


def long(results: Iterable[ResultFile]) -> dict[str, list[Any]]:
    """A row for each number, in the order of the results: what was measured of what, with which seed. Values by COLUMNS.

    What was not recorded is None, or an empty text; options and recipes are JSON.
    """
    rows: list[dict[str, Any]] = []
    for result in results:
        if result.groups:
            rows += read(result.file, command_of(result.kind), partial(_rows, result))
    return {column: [row[column] for row in rows] for column in COLUMNS}


def _rows(result: ResultFile, file: Path) -> list[dict[str, Any]]:
    content, folder, above = result.described, file.parent, list(result.above)
    study = above.pop() if result.kind == "studies" and above else ""
    if not above and result.kind == "probes":  # where no folder of a data set was named, what holds ENCODER/HEAD may be one
        above = [name for name in [folder.resolve().parents[1].name] if name != "probes"]
    pretraining = UNKNOWN if result.kind == "similarity" else Pretraining.from_dict(content)
    of_file = {
        "kind": result.kind,
        "dataset": "/".join(above),
        "study": study,
        "encoder": result.encoder or folder.resolve().parent.name,
        "family": UNTRAINED if pretraining.is_untrained else pretraining.family,
        "folder": str(folder),
    }
    rows = []
    for name, measures in result.groups.items():
        own = _entries(content)[name]
        seeds, protocol = own.get("seeds", content.get("seeds", ())), own.get("protocol")
        if isinstance(protocol, str):  # of a block; what all blocks have in common is said once
            seeds, protocol = (seeds, None) if protocol == LINEAR else ((), content.get("protocol") or {"name": protocol})
        of_group = {
            "head": own.get("head")
            or own.get("vector")
            or " ".join(filter(None, (result.head, name)))
            or folder.resolve().name,
            "block": _whole_number(own.get("block", content.get("block"))),
            **({"encoder": own["a"]["encoder"]} if "a" in own else {}),
            "options": _to_json(own.get("options")),
            "recipe": _to_json(protocol or own.get("recipe", content.get("recipe"))),
        }
        for metric, measure in measures.items():
            split = "training" if metric.startswith("train_") else "test"
            n = content.get(f"n_{split}", content.get("n_images"))
            of_measure = {"split": split, "metric": metric, "n": _whole_number(n)}
            of_each = seeds if len(seeds) == len(measure.values) else [None] * len(measure.values)
            for seed, value in zip(of_each, measure.values, strict=True):
                rows.append(of_file | of_group | of_measure | {"seed": _whole_number(seed), "value": value})
    return rows


def _whole_number(value: Any) -> int | None:
    return None if value is None else int(value)


def _to_json(value: Any) -> str | None:
    return json.dumps(value, ensure_ascii=False) if value else None
