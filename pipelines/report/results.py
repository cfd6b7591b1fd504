"""Every trained head as a row of one table, for other programs: tables/results.csv."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import xxhash

from pipelines.report.collect import Inputs
from pipelines.report.measured import Measure, Probe
from pipelines.report.reading import files_in, read
from probe.recipe import Recipe, preset_of
from probe.result_files import BALANCED, NLL
from store.moving.receipt import is_receipt_name
from store.shown import csv_cell

FILE = "results.csv"  # in the folder of tables
FURTHER = ("top5", BALANCED, NLL, "entropy", "train_top1", "train_map")  # measures, in addition to the one that counts
BEST_EPOCH = "_best_epoch"  # behind the name of a measure


@dataclass(frozen=True)
class TrainedHead:
    """A trained head, and what it belongs to.

    Attributes:
        dataset: empty if unknown.
        study: empty for heads of no study.
        receipts: digests by the keys of feature sets.
    """

    dataset: str
    study: str
    probe: Probe
    receipts: Mapping[str, str] = field(default_factory=dict)

    @property
    def protocol(self) -> str:
        """Name of the protocol without gradient steps; empty if the head was trained in steps."""
        return str(self.probe.recorded.get("protocol", {}).get("name", ""))

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Empty for a protocol without gradient steps."""
        return {} if self.protocol else self.probe.recipe

    @property
    def preset(self) -> str:
        """The preset that it was trained with, whatever its learning rate; empty if there is none."""
        return preset_of(self.recipe) if self.recipe else ""

    @property
    def selected(self) -> Mapping[str, Any]:
        """How settings were chosen; empty where there was nothing to choose from."""
        selected: Mapping[str, Any] = self.probe.recorded.get("selected") or {}
        return selected if selected.get("by") is not None else {}

    @property
    def measures(self) -> Mapping[str, Measure]:
        """By their names in metrics.json; NAME_best_epoch is that of the best epoch on the test images."""
        best = self.probe.best_epoch
        return {**self.probe.measures, **({f"{self.probe.measure}{BEST_EPOCH}": best.measure} if best else {})}


def results(inputs: Inputs) -> list[TrainedHead]:
    """All heads that were trained, each once: of the main data set, of the others, of studies."""
    of_sets, receipts = of_data_sets(inputs), receipts_by_key(inputs.folders.receipts)
    names = {images: row.dataset for row in reversed(of_sets) for images in _images(row.probe)}
    studied = {place for probes in inputs.studies.values() for probe in probes.values() if (place := _place(probe))}
    rows = [row for row in of_sets if _place(row.probe) not in studied]
    for study, probes in inputs.studies.items():
        for probe in probes.values():
            dataset = next((names[images] for images in _images(probe) if images in names), "")
            rows.append(TrainedHead(dataset, study, probe))
    return [replace(row, receipts=receipts) for row in rows]


def of_data_sets(inputs: Inputs) -> list[TrainedHead]:
    """Heads of the main data set and of the others, each once; of all of them, some may be in studies, too."""
    places = {place for probe in inputs.probes.values() if (place := _place(probe))}
    rows = [TrainedHead(inputs.folders.dataset, "", probe) for probe in inputs.probes.values()]
    for dataset, probes in inputs.datasets.items():
        rows += [TrainedHead(dataset, "", probe) for probe in probes.values() if _place(probe) not in places]
    return rows


def _place(probe: Probe) -> Path | None:
    return None if probe.folder is None else probe.folder.resolve()


def _images(probe: Probe) -> list[tuple[str, int]]:
    """What identifies the images of a head: its training features; else its test images and the number of training images.

    Folders of studies don't name their data set, and other runs may have written them.
    """
    recorded = [probe.features["training"], probe.test_images]
    return [(images, probe.n_training) for images in recorded if images is not None]


def receipts_by_key(folder: Path | None) -> dict[str, str]:
    """xxh3_128 of each receipt in a folder, hexadecimal, by the key of its feature set.

    Raises:
        BeyondClsError: a receipt cannot be read.
    """
    files = [file for file in files_in(folder, "*.json") if is_receipt_name(file.name)]
    return {read(file, "beyondcls extract", _feature_set_key): xxhash.xxh3_128_hexdigest(file.read_bytes()) for file in files}


def _feature_set_key(receipt: Path) -> str:
    """Of its feature set; receipts of other versions have one, too."""
    return str(json.loads(receipt.read_text(encoding="utf-8"))["key"])


def to_csv(inputs: Inputs) -> str:
    """A line per head, in full precision. Missing values are empty; options, grids and other values with parts are JSON."""
    columns, target = table(results(inputs)), io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    rows = zip(*columns.values(), strict=True)
    writer.writerows([[*columns], *([None if value is None else csv_cell(str(value)) for value in row] for row in rows)])
    return target.getvalue()


def table(rows: Sequence[TrainedHead]) -> dict[str, list[Any]]:
    """Columns by name, with a value for each head: None for nothing, JSON for what has parts."""
    settings = dict.fromkeys(name for result in rows for name in result.recipe)  # also those of other versions
    columns = COLUMNS | _entry_columns("recipe", *(name for name in settings if name not in COLUMNS))
    return {name: [_cell_value(value(result)) for result in rows] for name, value in columns.items()}


Value = Callable[[TrainedHead], Any]


def _probe_columns(*names: str) -> dict[str, Value]:
    return {name: attrgetter(f"probe.{name}") for name in names}


def _entry_columns(entries: str, *names: str) -> dict[str, Value]:
    """Entries of a mapping that a head has; None for those that are not there."""
    return {name: lambda r, name=name, of=attrgetter(entries): of(r).get(name) for name in names}  # type: ignore[misc]


def _spread_columns(name: str, measure: Callable[[TrainedHead], Measure | None]) -> dict[str, Value]:
    """Mean and standard deviation of a measure, which there is none of with fewer than two seeds."""
    return {
        name: lambda r: (m := measure(r)) and m.mean,
        "std" if name == "mean" else f"{name}_std": lambda r: m.std if (m := measure(r)) and len(m.values) > 1 else None,
    }


def _further_measure(name: str, result: TrainedHead) -> Measure | None:
    return result.probe.measures.get(name) if name != result.probe.measure else None


# name of the column -> its value
COLUMNS: dict[str, Value] = {
    **_probe_columns("encoder", "recorded_encoder"),
    "family": attrgetter("probe.pretraining.family"),
    "dataset": attrgetter("dataset"),
    "study": attrgetter("study"),
    **_probe_columns("head", "aggregator", "options"),
    **_entry_columns("probe.recorded", "normalisation", "final_norm", "init", "block"),
    # The head's result: the mean over seeds of the last epoch.
    "metric": attrgetter("probe.measure"),
    **_spread_columns("mean", attrgetter("probe.score")),
    "n_seeds": lambda r: len(r.probe.seeds),
    "seeds": attrgetter("probe.seeds"),
    "values": attrgetter("probe.score.values"),
    # Not a result: each seed in the epoch in which it is best on the test images, as benchmarks publish it.
    **_spread_columns("best_epoch_on_test_images", lambda r: r.measures.get(f"{r.probe.measure}{BEST_EPOCH}")),
    "best_epochs_on_test_images": lambda r: r.probe.best_epoch and r.probe.best_epoch.epochs,
    **{column: value for name in FURTHER for column, value in _spread_columns(name, partial(_further_measure, name)).items()},
    # How it was trained: base_lr and weight_decay are those that were chosen.
    "preset": attrgetter("preset"),
    **_entry_columns("probe.recorded", "protocol"),
    **_entry_columns("recipe", *(setting.name for setting in fields(Recipe))),
    "grid": lambda r: r.selected.get("candidates"),
    "selected_by": lambda r: r.selected.get("by"),
    "selected_on": lambda r: r.selected.get("on"),
    "n_selected_on": lambda r: r.selected.get("n_images"),
    **_probe_columns("n_training", "n_test", "n_classes", "n_tokens"),
    "n_crops": attrgetter("probe.crops"),
    **_entry_columns("probe.recorded", "subset"),
    **_entry_columns("probe.cost", "parameters", "parameters_classifier", "flops_per_image", "flops_of_encoder"),
    **_entry_columns("probe.cost", "memory_per_image", "bytes_per_image"),
    # Of a forward pass; then of the training, which heads of a command may share.
    **_entry_columns("probe.timing", "ms_per_image", "training_s", "n_trained_together"),
    "timed_on": lambda r: r.probe.timing.get("device"),
    "timed_with_threads": lambda r: r.probe.timing.get("threads"),
    "training_key": lambda r: r.probe.features["training"],
    "test_key": lambda r: r.probe.features["test"],
    "training_receipt": lambda r: r.receipts.get(r.probe.features["training"]),
    "test_receipt": lambda r: r.receipts.get(r.probe.features["test"]),
    **_probe_columns("test_images"),
    "transferred_from": attrgetter("probe.transferred"),
    **_probe_columns("notes", "command"),
}


def _cell_value(value: Any) -> Any:
    """A cell: None for nothing, JSON for what has parts."""
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False) if value else None
    return value
