"""What results on dense tasks have in common: SEGMENTATION/DATASET/ENCODER and DETECTION/DATASET/ENCODER."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pipelines.report.content import Text
from pipelines.report.estimate import Estimate, of_measure
from pipelines.report.measured import Measure
from pipelines.report.reading import files_in, measure_of, read
from store import BeyondClsError
from store.format.pretraining import Pretraining


class Dense(Protocol):
    """Results of one encoder on one data set."""

    @property
    def encoder(self) -> str: ...
    @property
    def pretraining(self) -> Pretraining: ...
    @property
    def shape(self) -> tuple[Any, ...]:
        """The grid of patches and the block whose tokens are read."""
        ...

    @property
    def data(self) -> str:
        """Digest of the test images."""
        ...

    @property
    def features(self) -> Mapping[str, str]:
        """Keys of the feature sets: training, test."""
        ...

    @property
    def images(self) -> tuple[Any, ...]:
        """What else tells test images apart, and what is measured on them."""
        ...


# What notes of tables say of differences to the random twin.
AGAINST_TWIN = (
    "Minus twin: the difference to the random twin that is named, in points; 95 %: over test images and seeds, where it "
    "was measured without groups of images, too. Without an interval, or with one that has 0 in it, a difference shows nothing."
)
NOT_ALIKE = "Not all encoders were measured on the same images with the same classes; rows are not comparable."
REMEMBERED = (
    "Measured on the feature set that was learnt from: unless different images of it were chosen for either, these numbers say "
    "how well images are remembered. Encoders:"
)
T = TypeVar("T")
D = TypeVar("D", bound=Dense)


def by_dataset(folder: Path | None, command: str, build: Callable[[Path], T]) -> dict[str, dict[str, T]]:
    """FOLDER/DATASET/ENCODER/metrics.json, by data set and encoder.

    Raises:
        BeyondClsError: a file is damaged, or results are not in the folder of an encoder in that of a data set.
    """
    by_name: dict[str, dict[str, T]] = {}
    for file in files_in(folder, "*/*/metrics.json"):
        by_name.setdefault(file.parents[1].name, {})[file.parent.name] = read(file, f"beyondcls {command}", build)
    if misplaced := [file for pattern in ("metrics.json", "*/metrics.json") for file in files_in(folder, pattern)]:
        raise BeyondClsError(
            f"{misplaced[0]} is not where the report expects results, {folder}/DATASET/ENCODER/metrics.json; "
            f"move its folder, or name the one that holds DATASET/ENCODER (--{folder.name if folder else ''})"
        )
    return by_name


def measure_or_none(content: Mapping[str, Any] | None) -> Measure | None:
    """A number over seeds, as stages write it; None where nothing could be measured.

    Raises:
        KeyError: the content is not as the stages write it.
        ValueError: the content is not as the stages write it.
    """
    return None if content is None or content["mean"] is None else measure_of(content)


def trained_first(results: Mapping[str, D]) -> list[D]:
    """Results of one data set in the order of the page: trained encoders, then random ones."""
    return sorted(results.values(), key=lambda one: (one.pretraining.is_untrained, one.encoder))


def twin_of(one: D, results: Sequence[D]) -> D | None:
    """The random encoder to compare with: one whose patches are of the same grid and block if there is any, else the first."""
    randoms = [other for other in results if other.pretraining.is_untrained]
    if one.pretraining.is_untrained or not randoms:
        return None
    return next((other for other in randoms if other.shape == one.shape), randoms[0])


def minus(measure: Measure | None, one: D, other_measure: Measure | None, other: D | None) -> Estimate | None:
    """A measure of one encoder − that of another; None where either is missing."""
    if measure is None or other_measure is None or other is None:
        return None
    return of_measure(measure, one.data, one.encoder).minus(of_measure(other_measure, other.data, other.encoder))


def warnings(results: Sequence[Dense]) -> list[Text]:
    """Where encoders were measured on different images, or perhaps on those that they were trained on."""
    notices = []
    if len({one.images for one in results}) > 1 or len({one.data for one in results} - {""}) > 1:
        notices.append(Text(NOT_ALIKE, kind="notice"))
    if remembered := tuple(one.encoder for one in results if one.features["training"] == one.features["test"]):
        notices.append(Text(REMEMBERED, remembered, "notice"))
    return notices


def notes_of(noted: Sequence[tuple[str, Sequence[str]]], n_all: int = 0) -> tuple[str, ...]:
    """Each note once, behind the names that it concerns: `mae, dino: …`; without names if it concerns as many as `n_all`."""
    by_note: dict[str, list[str]] = {}
    for name, notes in noted:
        for note in dict.fromkeys(notes):
            by_note.setdefault(note, []).append(name)
    return tuple(note if len(names) == n_all > 1 else f"{', '.join(names)}: {note}" for note, names in by_note.items())
