"""Results of an encoder on dense tasks, and what sections about them share: SEGMENTATION/DATASET/ENCODER, DETECTION/…, ….

A result is the `Entries` of its file, with `encoder` (the name of its folder), `dataset`, `folder` and `pretraining`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.report.content import Block, Cell, Heading, Text
from pipelines.report.estimate import Estimate, of_measure
from pipelines.report.measured import Entries, Measure
from pipelines.report.reading import entries_of, files_in, read, rows_of
from pipelines.report.remarks import notes_of
from pipelines.report.tables import DeclaredColumn, cells, differences, each, file_names, texts, title
from probe.result_files import read_result
from store import BeyondClsError
from store.format.pretraining import UNKNOWN, Pretraining
from store.shown import from_csv_cell

GRID, ORIGINAL = "grid", "original"  # resolutions of label maps, in addition to sides in pixels
TRAINED = ("knn", "logistic", "linear")  # protocols that learn from patches, in the order of the page
BASELINES = ("most-frequent-class", "drawn-by-prior")  # which see no image
PROTOCOLS = {
    "knn": "k-NN",
    "logistic": "logistic",
    "linear": "linear",
    "most-frequent-class": "most frequent class",
    "drawn-by-prior": "drawn by prior",
}
KINDS = {"box": "boxes", "mask": "masks"}  # that are detected
MEASURES = {
    "ap": "AP",
    "ap50": "AP50",
    "ap75": "AP75",
    "ap_large": "AP, large",
    "ap_medium": "AP, medium",
    "ap_small": "AP, small",
}
MAPS = {"cls": "[cls], mean", "centre-patch": "centre patch, mean", "centre": "centre baseline"}  # that are no head's
MIOU = re.compile(rf"(?:miou|accuracy)_({GRID}|{ORIGINAL}|[1-9][0-9]{{0,4}})")
IOU = re.compile(r"\S+ iou_\S+")  # columns of per_class.csv
# Entries that files must have, by the command that writes them; those of an entry that ends in ? where there is one, of * in
# each; one that ends in ! is a number over seeds.
_OF_TASK = "data n_training n_test classes grid block notes features.training features.test"
NEEDED = {
    "segment": f"{_OF_TASK} shown protocols.*.chosen protocols.*.selected protocols.*.seeds protocols.*.seconds "
    "protocols.*.notes foreground?.maps.*.share! foreground?.maps.*.gain! foreground?.maps.*.chance "
    "foreground?.maps.*.n_images",
    "depth": "task data block n_training n_test n_without.test pixels.test.missing pixels.test.beyond pixels.test.outside "
    "protocols.linear.seeds",
    "detect": f"{_OF_TASK} seeds recipe detector n_parameters objects.test.objects.large objects.test.objects.medium "
    f"objects.test.objects.small {' '.join(f'{kind}?.{name}' for kind in KINDS for name in MEASURES)}",
    "localise": "data n_images n_images_outside size frame.words frame.official maps.*.max_box_acc_v2! maps.*.max_box_acc! "
    "maps.*.by_iou maps.*.n_flat maps.*.on_objects?.share! maps.*.on_objects?.chance",
    "geometry": "n_images vectors.*.vector vectors.*.block",
    "similarity": " ".join(f"pairs.*.{side}.{name}" for side in "ab" for name in ("encoder", "vector", "block")),
    "few-shot": "n_images vectors.*.vector vectors.*.block vectors.*.protocol.name",
    "correspond": "n_pairs n_points n_points_outside at blocks.*.block blocks.*.chance",
    "retrieve": "n_images searches.*.vector searches.*.block searches.*.protocol searches.*.n_queries",
    "track": "n_images n_videos n_measured blocks.*.block blocks.*.n_objects blocks.*.still.j_and_f",
    "norms": "n_images times blocks.*.block blocks.*.share! blocks.*.images!",
    "blocks": "measure n_test rows.*.head rows.*.protocol rows.*.block rows.*.bytes_per_image",
}
# What notes of tables say of differences to the random twin.
AGAINST_TWIN = (
    "Minus twin: to the random twin that is named, points; 95 %: over test images and seeds, where groups of images were "
    "left out. An interval with 0 in it, or none, shows nothing."
)
NOT_ALIKE = "Not all encoders were measured on the same images with the same classes; rows are not comparable."
REMEMBERED = (
    "Measured on the feature set that was learnt from, so unless others of its images were chosen, images may be remembered. "
    "Encoders:"
)


def result_of(file: Path, command: str) -> Entries:
    """The result in a file of measures.

    Raises:
        BeyondClsError: it is not as `command` writes it.
    """

    def build(file: Path) -> Entries:
        content = read_result(file)
        one = entries_of(content)
        for path in NEEDED[command].split():
            _require(one, path.split("."))
        if command == "segment":
            names = [name for entry in one.protocols.values() for name in entry if name.startswith(("miou_", "accuracy_"))]
            if not names:
                raise ValueError("no protocol has a measure")
            if odd := next((name for name in names if not MIOU.fullmatch(name)), None):
                raise ValueError(f"{odd} is at no resolution, expected {GRID}, {ORIGINAL} or a number of pixels")
        pretraining = UNKNOWN if command == "similarity" else Pretraining.from_dict(content)  # it is of several encoders
        return Entries(one, encoder=file.parent.name, dataset=file.parents[1].name, folder=file.parent, pretraining=pretraining)

    return read(file, f"beyondcls {command}", build)


def _require(value: Any, path: Sequence[str]) -> None:
    name, *rest = path
    if name == "*":
        for one in value.values() if isinstance(value, Mapping) else value:
            _require(one, rest)
    elif not name.endswith("?") or value.get(name := name[:-1]) is not None:
        if rest:
            _require(value[name], rest)
        elif name.endswith("!"):
            if not isinstance(value[name := name[:-1]], Measure):
                raise ValueError(f"{name} is no number over seeds")
        elif name.startswith("n_") and not isinstance(value[name], list):
            int(value[name])
        else:
            value[name]


def by_dataset(folder: Path | None, command: str) -> dict[str, dict[str, Entries]]:
    """FOLDER/DATASET/ENCODER/metrics.json, by data set and encoder.

    Raises:
        BeyondClsError: a file is damaged, or results are not in the folder of an encoder in that of a data set.
    """
    by_name: dict[str, dict[str, Entries]] = {}
    for file in files_in(folder, "*/*/metrics.json"):
        by_name.setdefault(file.parents[1].name, {})[file.parent.name] = result_of(file, command)
    if misplaced := [file for pattern in ("metrics.json", "*/metrics.json") for file in files_in(folder, pattern)]:
        raise BeyondClsError(
            f"{misplaced[0]} is not where the report expects results, {folder}/DATASET/ENCODER/metrics.json; "
            f"move its folder, or name the one that holds DATASET/ENCODER (--{folder.name if folder else ''})"
        )
    return by_name


def trained_first(results: Iterable[Entries]) -> list[Entries]:
    """In the order of the page: trained encoders, then random ones."""
    return sorted(results, key=lambda one: (one.pretraining.is_untrained, one.encoder))


def each_dataset(
    section: str, by_name: Mapping[str, Mapping[str, Entries]], blocks_of: Callable[[str, str, list[Entries]], Sequence[Block]]
) -> Iterator[Block]:
    """Blocks of all data sets, each under its name where there are several, and what makes its numbers odd.

    Args:
        blocks_of: of a data set: its name, what names of its files begin with, its results in the order of the page.
    """
    names = file_names(section, list(by_name))
    for dataset, of_encoders in by_name.items():
        if len(by_name) > 1:
            yield Heading(dataset)
        results = trained_first(of_encoders.values())
        yield from warnings(results)
        yield from blocks_of(dataset, names[dataset], results)


def warnings(results: Sequence[Entries]) -> Iterator[Text]:
    """Where encoders were measured on different images, or perhaps on those that they were trained on; and what was noted."""
    images = [(one.n_test, one.classes, one.get("objects", {}).get("test")) for one in results]
    if any(one != images[0] for one in images) or len({one.data for one in results} - {""}) > 1:
        yield Text(NOT_ALIKE, kind="notice")
    if remembered := tuple(one.encoder for one in results if one.features.training == one.features.test):
        yield Text(REMEMBERED, remembered, "notice")
    of_protocols = [
        (f"{one.encoder} ({PROTOCOLS.get(name, name)})", one.protocols[name].notes)
        for one in results
        if "protocols" in one
        for name in learnt([one])
    ]
    if notes := (*notes_of([(one.encoder, one.notes) for one in results], len(results)), *notes_of(of_protocols)):
        yield Text("Noted when these were measured:", notes, "notice")


def twin_of(one: Entries, results: Sequence[Entries]) -> Entries | None:
    """The random encoder to compare with: one whose patches are of the same grid and block if there is any, else the first."""
    randoms = [other for other in results if other.pretraining.is_untrained]
    if one.pretraining.is_untrained or not randoms:
        return None
    return next((other for other in randoms if (other.grid, other.block) == (one.grid, one.block)), randoms[0])


def minus(value: Callable[[Entries], Measure | None], one: Entries, other: Entries | None) -> Estimate | None:
    """A measure of one encoder − that of another; None where either is missing."""
    if other is None or (a := value(one)) is None or (b := value(other)) is None:
        return None
    return of_measure(a, one.data, one.encoder).minus(of_measure(b, other.data, other.encoder))


def against_twin(
    results: Sequence[Entries], shown: Mapping[str, tuple[str, Callable[[Entries], Measure | None]]]
) -> list[DeclaredColumn]:
    """Columns of the random twin, and of differences to it; none without one. `shown`: titles and measures by name."""
    if not any(twin_of(one, results) for one in results):
        return []
    return [
        texts("twin", "Twin", lambda one: getattr(twin_of(one, results), "encoder", None), apart=True),
        *each(
            shown,
            lambda name: differences(
                f"{name}_against_twin",
                f"{shown[name][0]} minus twin",
                lambda one: minus(shown[name][1], one, twin_of(one, results)),
            ),
        ),
    ]


def counts(name: str, heading: str, value: Callable[[Any], Any], **about: Any) -> DeclaredColumn:
    """A column of whole numbers."""
    return cells(name, heading, lambda item: Cell(f"{int(value(item)):,}", float(value(item))), **about)


def learnt(results: Iterable[Entries]) -> list[str]:
    """Protocols of any of the encoders, in the order of the page, without baselines."""
    names = dict.fromkeys(name for one in results for name in one.protocols if name not in BASELINES)
    return [name for name in TRAINED if name in names] + [name for name in names if name not in TRAINED]


def miou(one: Entries, protocol: str, resolution: str) -> Measure | None:
    """Percent; None if it was not measured."""
    measure: Measure | None = one.protocols.get(protocol, {}).get(f"miou_{resolution}")
    return measure


def resolutions(results: Iterable[Entries]) -> list[str]:
    """At which label maps are compared: pixels of the originals first, then frames from small to large, then the grid."""
    names = {
        name.removeprefix("miou_") for one in results for p in one.protocols.values() for name in p if name.startswith("miou_")
    }
    return sorted(names, key=lambda name: (name == GRID, name != ORIGINAL, len(name), name))


def held_out(protocol: Entries) -> float | None:
    """What the chosen settings reach on the images on which they were chosen, percent; None if there was nothing to choose."""
    return None if protocol.selected is None else max(map(float, protocol.selected.percent))


def map_title(one: Entries) -> str:
    """What a map is called: `AbMILP`, `[cls], attention head 3`."""
    if one.source == "probe":
        return title(one.name)
    if one.name.startswith("cls-head-"):
        return f"[cls], attention head {one.name.removeprefix('cls-head-')}"
    return MAPS.get(one.name, one.name)


def class_scores(file: Path) -> dict[str, dict[str, float]]:
    """The rows of a per_class.csv by class: `n_training_patches`, `n_test_patches`, `PROTOCOL iou_RESOLUTION` in percent."""
    scores = {}
    for row in rows_of(file):
        counted = {name: float(row[name]) for name in ("n_training_patches", "n_test_patches")}
        ious = {name: float(value) for name, value in row.items() if value and IOU.fullmatch(str(name))}
        scores[from_csv_cell(row["class"])] = counted | ious
    return scores
