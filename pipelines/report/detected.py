"""What `beyondcls detect` measured, as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.report.dense import measure_or_none
from pipelines.report.measured import Measure
from probe.result_files import read_result
from store.format.pretraining import Pretraining

KINDS = {"box": "boxes", "mask": "masks"}
MEASURES = {
    "ap": "AP",
    "ap50": "AP50",
    "ap75": "AP75",
    "ap_large": "AP, large",
    "ap_medium": "AP, medium",
    "ap_small": "AP, small",
}
SIZES = ("large", "medium", "small")


@dataclass(frozen=True)
class Detected:
    """One DETECTION/DATASET/ENCODER.

    Attributes:
        data: digest of the test images.
        measures: of boxes, and of masks if they were measured: MEASURES by name, percent; None where no object has that size.
        preset: empty if there was none.
        n_objects: of the test images, by size.
        features: keys of the feature sets: training, test.
    """

    encoder: str
    data: str
    measures: Mapping[str, Mapping[str, Measure | None]]
    seeds: tuple[int, ...]
    recipe: Mapping[str, Any]
    detector: Mapping[str, Any]
    preset: str
    n_parameters: int
    n_training: int
    n_test: int
    n_objects: Mapping[str, int]
    classes: tuple[str, ...]
    shape: tuple[Any, ...]
    notes: tuple[str, ...]
    features: Mapping[str, str]
    pretraining: Pretraining
    folder: Path

    @property
    def images(self) -> tuple[Any, ...]:
        """What tells test images apart, beside their digest."""
        return self.n_test, self.classes, tuple(self.n_objects.values())


def detected_in(file: Path) -> Detected:
    """The result that a metrics.json belongs to.

    Raises:
        KeyError: the file is not as the command writes it.
        ValueError: the file is not as the command writes it.
        TypeError: the file is not as the command writes it.
    """
    content = read_result(file)
    return Detected(
        encoder=file.parent.name,
        data=str(content["data"]),
        measures={kind: {name: measure_or_none(content[kind][name]) for name in MEASURES} for kind in KINDS if kind in content},
        seeds=tuple(int(seed) for seed in content["seeds"]),
        recipe=dict(content["recipe"]),
        detector=dict(content["detector"]),
        preset=str(content.get("preset") or ""),
        n_parameters=int(content["n_parameters"]),
        n_training=int(content["n_training"]),
        n_test=int(content["n_test"]),
        n_objects={size: int(content["objects"]["test"]["objects"][size]) for size in SIZES},
        classes=tuple(map(str, content["classes"])),
        shape=(tuple(content["grid"]), content["block"]),
        notes=tuple(map(str, content["notes"])),
        features={name: str(content["features"][name]) for name in ("training", "test")},
        pretraining=Pretraining.from_dict(content),
        folder=file.parent,
    )
