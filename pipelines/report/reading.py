"""Files of the other stages as values: metrics, curves and timings of a head, attention statistics of an encoder."""

import csv
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipelines.report.measured import AttentionResult, Entries, Measure, Probe
from probe.result_files import ResultError, digest_of, is_measure, read_result
from store import BeyondClsError
from store.format.pretraining import Pretraining

QUARTILES = ("median", "lower_quartile", "upper_quartile")
T = TypeVar("T")


def files_in(folder: Path | None, pattern: str) -> list[Path]:
    """What matches below a folder, in order; empty if no folder is given."""
    if folder is None:
        return []
    parts = pattern.split("/")
    for depth in range(len(parts)):  # `glob` leaves out what this user cannot read
        for place in folder.glob("/".join(parts[:depth])) if depth else [folder]:
            if place.is_dir():
                os.scandir(place).close()
    return sorted(folder.glob(pattern))


def read(file: Path, stage: str, build: Callable[[Path], T]) -> T:
    """What `build` makes of a stage's file.

    Raises:
        BeyondClsError: `build` does not find in `file`, or next to it, what the stage writes (a KeyError or ValueError), or
            what is there is of two runs.
    """
    try:
        return build(file)
    except (ResultError, PermissionError):
        raise
    except KeyError as error:
        raise BeyondClsError(f"{file} or a table next to it has no {error}; run `{stage}` for it again") from error
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise BeyondClsError(
            f"{file} or a table next to it is damaged ({error}), expected what `{stage}` writes; run it again"
        ) from error


def probe_in(file: Path) -> Probe | None:
    """The probe of a metrics.json; None for a head that reads tokens which the encoder lacks."""
    content = read_result(file)
    if "absent" in content:
        return None
    score = "map" if "map" in content else "top1"
    measures = {score: measure_of(content[score])} | measures_in(content)
    for name in ("options", "n_tokens", "aggregator", "cost"):
        content[name]
    curve, best_epoch = _read_curves(file.with_name("curves.csv"))
    return Probe(
        content,
        encoder=file.parent.parent.name,
        head=file.parent.name,
        recorded_encoder=str(content["encoder"]),
        measures=measures,
        **{name: int(content[name]) for name in ("n_training", "n_test", "n_classes")},
        seeds=tuple(map(int, content["seeds"])),
        recipe=dict(content["recipe"] if "protocol" not in content else content["protocol"]),
        features={name: str(content["features"][name]) for name in ("training", "test")},
        selected=_describe_selection(content.get("selected", {})),
        curve=curve,
        best_epoch=best_epoch,
        weights=_file_beside(file, "trained/weights.npy"),
        correct=_file_beside(file, "trained/correct.npz"),
        crops=content.get("augmentation", {}).get("n_crops"),
        timing=_timing(file),
        transferred=str(content["transferred"]["training"]) if "transferred" in content else None,
        pretraining=Pretraining.from_dict(content),
        recorded=content,
        folder=file.parent,
    )


def _file_beside(file: Path, name: str) -> Path | None:
    beside = file.parent / name
    return beside if beside.is_file() else None


def _timing(metrics: Path) -> dict[str, Any]:
    """The content of timing.json next to `metrics`; empty without that file, or if it belongs to another run."""
    file = metrics.with_name("timing.json")
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if content["metrics"] != digest_of(metrics):
        return {}
    kinds: dict[str, Callable[[Any], Any]] = {"ms_per_image": finite, "device": str, "threads": int, "n_images": int}
    if "training_s" in content:
        kinds |= {"training_s": finite, "n_trained_together": int}
    return {name: kind(content[name]) for name, kind in kinds.items()}


def _describe_selection(content: Mapping[str, Any]) -> str:
    """What was selected on what, in words: `base_lr 0.03 by top1 on 10 % of the training images, stratified (500 images)`."""
    if content.get("by") is None:
        return "nothing"
    not_parameters = ("on", "by", "n_images", "candidates", "percent", "note")
    chosen = ", ".join(f"{name} {value:g}" for name, value in content.items() if name not in not_parameters)
    return f"{chosen} by {content['by']} on {content['on']} ({int(content['n_images']):,} images)"


def measure_of(content: Mapping[str, Any]) -> Measure:
    """A number over seeds, as stages write it."""
    values = tuple(float(value) for value in content["values"])
    return Measure(finite(content["mean"]), finite(content["std"]), values, tuple(map(finite, content.get("without", ()))))


def measures_in(content: Mapping[str, Any]) -> dict[str, Measure]:
    """All numbers over seeds among these entries, by name, without those that could not be measured."""
    return {name: measure_of(value) for name, value in content.items() if is_measure(value) and value["mean"] is not None}


def entries_of(value: Any) -> Any:
    """A file's content: objects as `Entries`, numbers over seeds as `Measure`, None for those without one."""
    if isinstance(value, list):
        return list(map(entries_of, value))
    if not isinstance(value, Mapping):
        return value
    if is_measure(value):
        return None if value["mean"] is None else measure_of(value)
    return Entries({name: entries_of(entry) for name, entry in value.items()})


def _read_curves(file: Path) -> tuple[Entries | None, Entries | None]:
    """Means over seeds by epoch, where an image has one label, and what each seed reached in its best epoch.

    None where there is no such file, or nothing in it.
    """
    by_epoch: dict[int, list[dict[str, str]]] = {}
    by_seed: dict[int, list[tuple[float, int]]] = {}
    for row in (rows := rows_of(file)):
        by_epoch.setdefault(int(row["epoch"]), []).append(row)
        score = finite(row["map" if "map" in row else "top1"])
        by_seed.setdefault(int(row["seed"]), []).append((score, -int(row["epoch"])))
    if not rows:
        return None, None
    best = [max(entries) for entries in by_seed.values()]
    values = tuple(value for value, _ in best)
    measure = Measure(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, values)

    def mean(name: str) -> tuple[float, ...]:
        return tuple(sum(finite(row[name]) for row in by_epoch[epoch]) / len(by_epoch[epoch]) for epoch in sorted(by_epoch))

    curve = None if "map" in rows[0] else Entries(epochs=sorted(by_epoch), loss=mean("loss"), top1=mean("top1"))
    return curve, Entries(measure=measure, epochs=tuple(-epoch for _, epoch in best))


def attention_in(file: Path) -> AttentionResult:
    """The statistics of a summary.json, and of the tables next to it."""
    content = json.loads(file.read_text(encoding="utf-8"))
    rows = rows_of(file.parent / "statistics.csv")
    unbounded = [row for row in rows if row["statistic"] in content["unbounded"]]
    for name in ("key", "data", "n_tokens", "architecture"):
        content[name]
    return AttentionResult(
        content,
        encoder=file.parent.name,
        n_images=int(content["n_images"]),
        statistics=_by_block(rows, ("mean", "std")),
        medians=_by_block(unbounded, QUARTILES),
        cls_map=_file_beside(file, "maps/cls_map.npy"),
        heads=_file_beside(file, "heads.csv"),
        crops=_file_beside(file, "maps/crops.npy"),
        declared=_titles_and_units(content, {row["statistic"]: None for row in rows}),
        pretraining=Pretraining.from_dict(content),
    )


def _titles_and_units(content: Mapping[str, Any], names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Titles and units by statistic, in the order of the table; of one that was removed from the program, its name."""
    described = {name: (str(one["title"]), str(one["unit"])) for name, one in content["statistics"].items()}
    return {name: described.get(name, (name, "")) for name in names}


def _by_block(rows: Sequence[Mapping[str, str]], columns: tuple[str, ...]) -> dict[str, list[tuple[float, ...]]]:
    """These columns of a table, by statistic and block."""
    by_name: dict[str, dict[int, tuple[float, ...]]] = {}
    for row in rows:
        by_name.setdefault(row["statistic"], {})[int(row["block"])] = tuple(finite(row[column]) for column in columns)
    return {name: [blocks[block] for block in range(len(blocks))] for name, blocks in by_name.items()}


def rows_of(file: Path) -> list[dict[str, str]]:
    """Of a table; none where there is no such file."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as source:
        return list(csv.DictReader(source))


def finite(value: Any) -> float:
    """A number.

    Raises:
        ValueError: it is no number, or not a finite one.
    """
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number
