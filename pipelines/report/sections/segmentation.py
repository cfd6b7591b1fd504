"""Semantic segmentation from patch tokens: mIoU by protocol, by class, and how much weight falls on objects."""

from collections.abc import Sequence
from functools import partial

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Column, Row, Section, Table, Text
from pipelines.report.dense import AGAINST_TWIN, minus, notes_of, twin_of, warnings
from pipelines.report.each_dataset import each_dataset
from pipelines.report.foreground import foreground_blocks
from pipelines.report.galleries.predictions import label_maps
from pipelines.report.measured import Measure
from pipelines.report.reading import read
from pipelines.report.segmented import BASELINES, GRID, ORIGINAL, PROTOCOLS, TRAINED, Segmented, class_scores, in_order
from pipelines.report.tables import (
    NOTHING,
    file_names,
    interval_beside,
    named,
    number,
    with_best,
    with_interval,
    with_known_intervals,
)

ENCODER = Column("encoder", "Encoder", "text")
ABOUT = (
    "Without training the encoder: each patch is classified by its token, and the predicted label map is compared with the "
    "true one. Settings are chosen on held-out images, never on those that are measured. Void pixels are ignored."
)

MIOU = (
    "percent, mean over classes. Bold: the highest of a column; ±: the standard deviation over seeds, where there are several. "
    "Logistic regression and k-NN draw nothing. Baselines see no image: one class everywhere, or classes drawn by their share "
    f"of the training patches. {AGAINST_TWIN} Values at another resolution don't compare with these. A dash: it was not "
    "measured."
)
OF_PATCHES = f"Intersection over union of labels of patches with labels of patches, {MIOU}"
OF_PIXELS = f"Intersection over union of predicted and true label maps, {MIOU}"


def section(inputs: Inputs) -> Section | None:
    """Tables and pictures for each data set; None where nothing was segmented.

    Raises:
        BeyondClsError: a file is damaged.
    """
    if not inputs.segmentation:
        return None
    blocks = each_dataset("segmentation", inputs.segmentation, partial(_of_dataset, inputs))
    return Section("segmentation", "What patches say about pixels", (Text(ABOUT), *blocks))


def _of_dataset(inputs: Inputs, dataset: str, name: str, results: Sequence[Segmented]) -> list[Block]:
    resolutions = in_order(resolution for one in results for resolution in one.resolutions)
    blocks: list[Block] = [*warnings(results)]
    if notes := _notes(results):
        blocks.append(Text("Noted when these were measured:", notes, "notice"))
    blocks += [_by_protocol(dataset, name, results, resolution) for resolution in resolutions]
    blocks += [_by_class(dataset, name, results, resolutions[0]), _settings(dataset, name, results)]
    blocks += foreground_blocks(dataset, name, results)
    return blocks + label_maps(inputs, dataset, name, results)


def at(resolution: str) -> str:
    """A resolution in words, behind "mIoU"."""
    return {GRID: "of patches", ORIGINAL: "at the pixels of the originals"}.get(
        resolution, f"in a frame of {resolution} pixels"
    )


def _short(resolution: str) -> str:
    return {GRID: "grid", ORIGINAL: "original"}.get(resolution, f"{resolution} px")


def _notes(results: Sequence[Segmented]) -> tuple[str, ...]:
    """Notes of whole runs, and of protocols."""
    of_protocols = [
        (f"{one.encoder} ({PROTOCOLS.get(name, name)})", one.protocols[name].notes) for one in results for name in one.learnt
    ]
    return notes_of([(one.encoder, one.notes) for one in results], len(results)) + notes_of(of_protocols)


def _learnt(results: Sequence[Segmented]) -> list[str]:
    """Protocols of any of the encoders, in the order of the page."""
    names = dict.fromkeys(name for one in results for name in one.learnt)
    return sorted(names, key=lambda name: (*TRAINED, name).index(name))


def _by_protocol(dataset: str, name: str, results: Sequence[Segmented], resolution: str) -> Table:
    """mIoU at one resolution, and differences to the random twin."""
    learnt = [p for p in _learnt(results) if any(_miou(one, p, resolution) for one in results)]
    floors = [p for p in BASELINES if any(_miou(one, p, resolution) for one in results)]
    shown = f"mIoU ({_short(resolution)})"
    columns = [ENCODER]
    columns += [Column(f"{p}_miou_{resolution}", f"{PROTOCOLS.get(p, p)}, {shown}", "spread") for p in learnt]
    plain = [p.replace("-", "_") for p in floors]
    columns += [
        Column(f"{column}_miou_{resolution}", f"{PROTOCOLS[p]}, {shown}", "number", apart=i == 0)
        for i, (p, column) in enumerate(zip(floors, plain, strict=True))
    ]
    twins = [twin_of(one, results) for one in results]
    if any(twins):
        columns.append(Column("twin", "Twin", "text", apart=True))
        for p in learnt:
            column = Column(f"{p}_miou_{resolution}_against_twin", f"{PROTOCOLS.get(p, p)} minus twin", "spread")
            columns += interval_beside(column)
    of_protocols = [with_best(_miou(one, p, resolution) for one in results) for p in learnt]
    rows = []
    for i, (one, twin) in enumerate(zip(results, twins, strict=True)):
        cells = [named(one.encoder, one.pretraining.is_untrained), *(of_protocol[i] for of_protocol in of_protocols)]
        cells += [number(None if (m := _miou(one, p, resolution)) is None else m.mean, 1) for p in floors]
        if any(twins):
            cells.append(Cell(twin.encoder, twin.encoder) if twin else NOTHING)
            for p in learnt:
                of_twin = _miou(twin, p, resolution) if twin else None
                cells += with_interval(minus(_miou(one, p, resolution), one, of_twin, twin))
        rows.append(Row(tuple(cells), muted=one.pretraining.is_untrained))
    title = f"{dataset}: mIoU {at(resolution)}"
    is_grid = resolution == GRID
    note = OF_PATCHES if is_grid else OF_PIXELS
    return with_known_intervals(Table(f"{name}-{resolution}", title, note, tuple(columns), tuple(rows), folded=is_grid))


def _miou(one: Segmented, protocol: str, resolution: str) -> Measure | None:
    return one.protocols[protocol].miou(resolution) if protocol in one.protocols else None


def _by_class(dataset: str, name: str, results: Sequence[Segmented], resolution: str) -> Table:
    """Intersection over union by class: a column for each encoder, rows grouped by protocol."""
    scores = {one.encoder: read(one.folder / "per_class.csv", "beyondcls segment", class_scores) for one in results}
    columns = [Column("class", "Class", "text")]
    columns += [
        Column(column, f"{one.encoder}, IoU ({_short(resolution)})", apart=i == 0)
        for i, (one, column) in enumerate(zip(results, file_names("iou", list(scores)).values(), strict=True))
    ]
    columns.append(Column("n_training_patches", "Training patches", apart=True))
    columns.append(Column("n_test_patches", "Test patches"))
    rows = []
    for protocol in _learnt(results):
        for label in dict.fromkeys(row.name for of_encoder in scores.values() for row in of_encoder):
            of_class = [next((row for row in of_encoder if row.name == label), None) for of_encoder in scores.values()]
            ious = [None if row is None else row.ious.get((protocol, resolution)) for row in of_class]
            cells = [Cell(label, label), *with_best(None if iou is None else Measure(iou, 0.0, (iou,)) for iou in ious)]
            first = next(row for row in of_class if row is not None)
            cells += [Cell(f"{n:,}", float(n)) for n in (first.n_training, first.n_test)]
            rows.append(Row(tuple(cells), group=PROTOCOLS.get(protocol, protocol)))
    note = (
        "Intersection over union of each class, percent, mean over seeds; a dash where neither truth nor "
        "prediction has the class. Bold: the highest of a row. Patches are counted on the grid of the first encoder."
    )
    return Table(f"{name}-classes", f"{dataset}: by class", note, tuple(columns), tuple(rows), folded=True)


def _settings(dataset: str, name: str, results: Sequence[Segmented]) -> Table:
    """What was chosen, on what."""
    titles = {"protocol": "Protocol", "chosen": "Chosen", "on": "Chosen on", "seeds": "Seeds", "shown": "Views show"}
    columns = [ENCODER, *(Column(key, shown, "text") for key, shown in titles.items())]
    columns += [Column("n_candidates", "Of settings"), Column("n_held_out", "Images held out")]
    columns += [Column("held_out", "mIoU (grid) there"), Column("seconds", "Seconds"), Column("n_test", "Test images")]
    rows = []
    for one in results:
        for protocol in one.learnt:
            p = one.protocols[protocol]
            selected = p.selected or {}
            texts = [
                PROTOCOLS.get(protocol, protocol),
                ", ".join(f"{key} {value}" for key, value in p.chosen.items()),
                str(selected.get("on", "")),
                ", ".join(map(str, p.seeds)),
                one.shown,
            ]
            numbers = [len(selected["candidates"]), int(selected["n_images"])] if selected else [None, None]
            cells = [named(one.encoder, one.pretraining.is_untrained), *(Cell(text or "–", text or None) for text in texts)]
            cells += [number(n, 0) for n in numbers]
            cells += [number(p.held_out, 1), number(p.seconds, 1), number(one.n_test, 0)]
            rows.append(Row(tuple(cells), muted=one.pretraining.is_untrained))
    note = (
        "The settings that have the highest mIoU of patches on images that are neither learnt from nor measured. Seconds of "
        "selection and training, on the machine that ran it. A dash: a single setting was given, or nothing is random."
    )
    return Table(f"{name}-settings", f"{dataset}: settings", note, tuple(columns), tuple(rows), folded=True)
