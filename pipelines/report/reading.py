"""Files of the other stages as values: metrics, curves and timings of a head, attention statistics of an encoder."""

import csv
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipelines.report.measured import Attention, BestEpoch, Curve, Measure, Probe
from probe.result_files import ResultError, digest_of, read_result
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
        BeyondClsError: `build` does not find in `file`, or beside it, what the stage writes, or what is there is of two runs.
    """
    try:
        return build(file)
    except (ResultError, PermissionError):
        raise
    except KeyError as error:
        raise BeyondClsError(f"{file} or a table beside it has no {error}; run `{stage}` for it again") from error
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise BeyondClsError(
            f"{file} or a table beside it is damaged ({error}), expected what `{stage}` writes; run it again"
        ) from error


def probe_in(file: Path) -> Probe | None:
    """The probe of a metrics.json; None for a head that reads tokens which the encoder lacks."""
    content = read_result(file)
    if "absent" in content:
        return None
    weights, correct = (file.parent / "trained" / name for name in ("weights.npy", "correct.npz"))
    score = "map" if "map" in content else "top1"
    curve, best_epoch = _course(file.with_name("curves.csv"))
    return Probe(
        encoder=file.parent.parent.name,
        head=file.parent.name,
        recorded_encoder=str(content["encoder"]),
        options=dict(content["options"]),
        measures={score: measure_of(content[score])} | measures_in(content),
        n_training=int(content["n_training"]),
        n_test=int(content["n_test"]),
        n_tokens=None if content["n_tokens"] is None else int(content["n_tokens"]),
        n_classes=int(content["n_classes"]),
        seeds=tuple(int(seed) for seed in content["seeds"]),
        recipe=dict(content["recipe"] if "protocol" not in content else content["protocol"]),
        features={name: str(content["features"][name]) for name in ("training", "test")},
        selected=_selected(content.get("selected", {})),
        command=str(content.get("command", "")),
        curve=curve,
        weights=weights if weights.is_file() else None,
        aggregator=str(content["aggregator"]),
        crops=content.get("augmentation", {}).get("n_crops"),
        cost=dict(content["cost"]),
        correct=correct if correct.is_file() else None,
        test_images=str(content["test_images"]) if "test_images" in content else None,
        timing=_timing(file),
        notes=tuple(str(note) for note in content.get("notes", ())),
        transferred=str(content["transferred"]["training"]) if "transferred" in content else None,
        pretraining=Pretraining.from_dict(content),
        recorded=content,
        best_epoch=best_epoch,
        folder=file.parent,
    )


def _timing(metrics: Path) -> dict[str, Any]:
    """The content of timing.json beside `metrics`; empty without that file, or if it belongs to another run.

    Raises:
        KeyError: the file is not as the stage writes it.
        ValueError: the file is not as the stage writes it.
    """
    file = metrics.with_name("timing.json")
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if content["metrics"] != digest_of(metrics):
        return {}
    about: dict[str, Any] = {
        "device": str(content["device"]),
        "threads": int(content["threads"]),
        "n_images": int(content["n_images"]),
    }
    if "training_s" in content:
        about |= {"training_s": _finite(content["training_s"]), "n_trained_together": int(content["n_trained_together"])}
    return {"ms_per_image": _finite(content["ms_per_image"]), **about}


def _selected(content: Mapping[str, Any]) -> str:
    """What was selected on what, in words: `base_lr 0.03 by top1 on 10 % of the training images, stratified (500 images)`."""
    if content.get("by") is None:
        return "nothing"
    not_parameters = ("on", "by", "n_images", "candidates", "percent", "note")
    chosen = ", ".join(f"{name} {value:g}" for name, value in content.items() if name not in not_parameters)
    return f"{chosen} by {content['by']} on {content['on']} ({int(content['n_images']):,} images)"


def measure_of(content: Mapping[str, Any]) -> Measure:
    """A number over seeds, as stages write it.

    Raises:
        KeyError: the content is not as the stages write it.
        ValueError: the content is not as the stages write it.
    """
    values = tuple(float(value) for value in content["values"])
    return Measure(_finite(content["mean"]), _finite(content["std"]), values, tuple(map(_finite, content.get("without", ()))))


def measures_in(content: Mapping[str, Any]) -> dict[str, Measure]:
    """All numbers over seeds among these entries, by name, without those that could not be measured.

    Raises:
        KeyError: as `measure_of`.
        ValueError: likewise.
    """
    return {name: measure_of(value) for name, value in content.items() if is_measure(value)}


class Entries(dict[str, Any]):
    """What a file says, its entries as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def entries_of(value: Any) -> Any:
    """A file's content: objects as `Entries`, arrays as tuples, numbers over seeds as `Measure`, None for those without one.

    Raises:
        KeyError: as `measure_of`.
        ValueError: likewise.
    """
    if isinstance(value, list):
        return tuple(map(entries_of, value))
    if not isinstance(value, Mapping):
        return value
    if {"mean", "values"} <= set(value):
        return None if value["mean"] is None else measure_of(value)
    return Entries({name: entries_of(entry) for name, entry in value.items()})


def is_measure(value: Any) -> bool:
    """Whether this is a number over seeds that could be measured."""
    return isinstance(value, Mapping) and "values" in value and value.get("mean") is not None


def _course(file: Path) -> tuple[Curve | None, BestEpoch | None]:
    """Means over seeds by epoch, where an image has one label, and what each seed reached in its best epoch.

    None where there is no such file, or nothing in it.
    """
    by_epoch: dict[int, list[dict[str, str]]] = {}
    by_seed: dict[int, list[tuple[float, int]]] = {}
    for row in (rows := _rows(file)):
        by_epoch.setdefault(int(row["epoch"]), []).append(row)
        score = _finite(row["map" if "map" in row else "top1"])
        by_seed.setdefault(int(row["seed"]), []).append((score, -int(row["epoch"])))
    if not rows:
        return None, None
    best = [max(entries) for entries in by_seed.values()]
    values = tuple(value for value, _ in best)
    measure = Measure(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, values)

    def mean(name: str) -> tuple[float, ...]:
        return tuple(sum(_finite(row[name]) for row in by_epoch[epoch]) / len(by_epoch[epoch]) for epoch in sorted(by_epoch))

    curve = None if "map" in rows[0] else Curve(tuple(sorted(by_epoch)), mean("loss"), mean("top1"))
    return curve, BestEpoch(measure, tuple(-epoch for _, epoch in best))


def attention_in(file: Path) -> Attention:
    """The statistics of a summary.json, and of the tables beside it."""
    content = json.loads(file.read_text(encoding="utf-8"))
    rows = _rows(file.parent / "statistics.csv")
    heads, cls_map, crops = (file.parent / name for name in ("heads.csv", "maps/cls_map.npy", "maps/crops.npy"))
    return Attention(
        encoder=file.parent.name,
        key=str(content["key"]),
        data=str(content["data"]),
        n_images=int(content["n_images"]),
        n_tokens=None if content["n_tokens"] is None else int(content["n_tokens"]),
        architecture=dict(content["architecture"]),
        statistics={
            name: tuple((mean, std) for mean, std in blocks) for name, blocks in _by_block(rows, ("mean", "std")).items()
        },
        cls_map=cls_map if cls_map.is_file() else None,
        heads=heads if heads.is_file() else None,
        crops=crops if crops.is_file() else None,
        medians={
            name: tuple((median, lower, upper) for median, lower, upper in blocks)
            for name, blocks in _by_block([r for r in rows if r["statistic"] in content["unbounded"]], QUARTILES).items()
        },
        declared=_declared(content, {row["statistic"]: None for row in rows}),
        pretraining=Pretraining.from_dict(content),
    )


def _declared(content: Mapping[str, Any], names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Titles and units by statistic, in the order of the table; of one that was removed from the program, its name."""
    described = {name: (str(one["title"]), str(one["unit"])) for name, one in content["statistics"].items()}
    return {name: described.get(name, (name, "")) for name in names}


def _by_block(rows: Sequence[Mapping[str, str]], columns: tuple[str, ...]) -> dict[str, list[tuple[float, ...]]]:
    """These columns of a table, by statistic and block."""
    by_name: dict[str, dict[int, tuple[float, ...]]] = {}
    for row in rows:
        by_name.setdefault(row["statistic"], {})[int(row["block"])] = tuple(_finite(row[column]) for column in columns)
    return {name: [blocks[block] for block in range(len(blocks))] for name, blocks in by_name.items()}


def _rows(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as source:
        return list(csv.DictReader(source))


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number
