"""What `beyondcls segment` measured, as frozen values."""

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.report.dense import measure_or_none
from pipelines.report.measured import Measure
from pipelines.report.reading import measure_of
from probe.result_files import read_result
from store.format.pretraining import Pretraining
from store.shown import from_csv_cell

GRID, ORIGINAL = "grid", "original"
TRAINED = ("knn", "logistic", "linear")  # protocols that learn from patches, in the order of the page
BASELINES = ("most-frequent-class", "drawn-by-prior")  # which see no image
PROTOCOLS = {
    "knn": "k-NN",
    "logistic": "logistic",
    "linear": "linear",
    "most-frequent-class": "most frequent class",
    "drawn-by-prior": "drawn by prior",
}
RESOLUTION = re.compile(rf"{GRID}|{ORIGINAL}|[1-9][0-9]{{0,4}}")
IOU = re.compile(r"(?P<protocol>\S+) iou_(?P<resolution>\S+)")  # columns of per_class.csv


@dataclass(frozen=True)
class PatchProtocol:
    """One protocol, or baseline.

    Attributes:
        measures: miou_grid, accuracy_grid, miou_original, …, percent; None where nothing was labelled.
        selected: how settings were chosen: on, by, n_images, candidates, percent; None where there was nothing to choose from.
    """

    name: str
    measures: Mapping[str, Measure | None]
    chosen: Mapping[str, Any]
    selected: Mapping[str, Any] | None
    seeds: tuple[int, ...]
    seconds: float
    notes: tuple[str, ...]

    def miou(self, resolution: str) -> Measure | None:
        """Percent; None if it was not measured."""
        return self.measures.get(f"miou_{resolution}")

    @property
    def held_out(self) -> float | None:
        """What the chosen settings reach on the images on which they were chosen, percent."""
        return None if self.selected is None else max(map(float, self.selected["percent"]))


@dataclass(frozen=True)
class OnForeground:
    """How much of the weight of one map is on the foreground, percent.

    Attributes:
        area: what equal weights put there.
        gain: `share` by area, averaged over images.
    """

    source: str
    name: str
    share: Measure
    gain: Measure
    area: float


@dataclass(frozen=True)
class ClassScore:
    """One class: how many patches it has, and its intersection over union by protocol and resolution, percent."""

    name: str
    n_training: int
    n_test: int
    ious: Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Segmented:
    """One SEGMENTATION/DATASET/ENCODER.

    Attributes:
        data: digest of the test images.
        shown: what views show of the images, in words; empty if only patches were compared.
        features: keys of the feature sets: training, test.
        foreground: maps by (source, name), and of which classes; empty where nothing was compared.
    """

    encoder: str
    data: str
    n_training: int
    n_test: int
    classes: tuple[str, ...]
    shape: tuple[Any, ...]
    shown: str
    protocols: Mapping[str, PatchProtocol]
    notes: tuple[str, ...]
    features: Mapping[str, str]
    foreground: Mapping[tuple[str, str], OnForeground]
    foreground_classes: tuple[str, ...]
    n_foreground: int
    pretraining: Pretraining
    folder: Path

    @property
    def images(self) -> tuple[Any, ...]:
        """What tells test images apart, beside their digest."""
        return self.n_test, self.classes

    @cached_property
    def resolutions(self) -> list[str]:
        """At which label maps are compared, as `in_order`."""
        names = (name for p in self.protocols.values() for name in p.measures)
        return in_order(name.removeprefix("miou_") for name in names if name.startswith("miou_"))

    @cached_property
    def learnt(self) -> list[str]:
        """Names of its protocols, in the order of the page, without baselines."""
        others = [name for name in self.protocols if name not in (*TRAINED, *BASELINES)]
        return [name for name in TRAINED if name in self.protocols] + others


def in_order(resolutions: Iterable[str]) -> list[str]:
    """Each once: pixels of the originals first, then frames from small to large, then the grid of patches."""
    return sorted(set(resolutions), key=lambda name: (name == GRID, name != ORIGINAL, len(name), name))


def segmented_in(file: Path) -> Segmented:
    """The result that a metrics.json belongs to.

    Raises:
        KeyError: the file is not as the command writes it.
        ValueError: the file is not as the command writes it.
        TypeError: the file is not as the command writes it.
    """
    content = read_result(file)
    protocols = {str(name): _protocol(str(name), entry) for name, entry in content["protocols"].items()}
    if not any(protocol.measures for protocol in protocols.values()):
        raise ValueError("no protocol has a measure")
    maps = content.get("foreground", {}).get("maps", ())
    return Segmented(
        encoder=file.parent.name,
        data=str(content["data"]),
        n_training=int(content["n_training"]),
        n_test=int(content["n_test"]),
        classes=tuple(map(str, content["classes"])),
        shape=(tuple(content["grid"]), content["block"]),
        shown="" if content["shown"] is None else str(content["shown"]["words"]),
        protocols=protocols,
        notes=tuple(map(str, content["notes"])),
        features={name: str(content["features"][name]) for name in ("training", "test")},
        foreground={(str(entry["source"]), str(entry["name"])): _on_foreground(entry) for entry in maps},
        foreground_classes=tuple(map(str, content.get("foreground", {}).get("classes", ()))),
        n_foreground=max((int(entry["n_images"]) for entry in maps), default=0),
        pretraining=Pretraining.from_dict(content),
        folder=file.parent,
    )


def _protocol(name: str, content: Mapping[str, Any]) -> PatchProtocol:
    measures = {key: measure_or_none(value) for key, value in content.items() if key.startswith(("miou_", "accuracy_"))}
    for measure in measures:
        if not RESOLUTION.fullmatch(measure.partition("_")[2]):
            raise ValueError(f"{measure} is at no resolution, expected {GRID}, {ORIGINAL} or a number of pixels")
    return PatchProtocol(
        name=name,
        measures=measures,
        chosen=dict(content["chosen"]),
        selected=None if content["selected"] is None else dict(content["selected"]),
        seeds=tuple(int(seed) for seed in content["seeds"]),
        seconds=float(content["seconds"]),
        notes=tuple(map(str, content["notes"])),
    )


def _on_foreground(content: Mapping[str, Any]) -> OnForeground:
    measures = {name: measure_of(content[name]) for name in ("share", "gain")}
    return OnForeground(str(content["source"]), str(content["name"]), area=float(content["chance"]), **measures)


def class_scores(file: Path) -> list[ClassScore]:
    """The rows of a per_class.csv.

    Raises:
        KeyError: the file is not as the command writes it.
        ValueError: the file is not as the command writes it.
    """
    with file.open(newline="", encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    return [
        ClassScore(
            from_csv_cell(row["class"]),
            int(row["n_training_patches"]),
            int(row["n_test_patches"]),
            {(m["protocol"], m["resolution"]): float(v) for k, v in row.items() if v and (m := IOU.fullmatch(str(k)))},
        )
        for row in rows
    ]
