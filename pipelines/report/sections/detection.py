"""Objects and their masks, detected from patch tokens: AP by size, beside Table 5 of the paper's first version."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Column, Row, Section, Table, Text
from pipelines.report.dense import AGAINST_TWIN, minus, notes_of, twin_of, warnings
from pipelines.report.detected import KINDS, MEASURES, SIZES, Detected
from pipelines.report.each_dataset import each_dataset
from pipelines.report.galleries.predictions import objects
from pipelines.report.published.printed import printed
from pipelines.report.tables import NOTHING, interval_beside, named, number, with_best, with_interval, with_known_intervals
from store.format.pretraining import JOINT, LABELS, MASKED

ENCODER = Column("encoder", "Encoder", "text")
ABOUT = (
    "Without training the encoder: Mask R-CNN over a pyramid of the patch tokens of one block learns to find objects and their "
    "masks. Average precision (AP) is COCO's, at the pixels of the originals, of all their objects: those that a crop does not "
    "show count as missed."
)

AP = (
    "Average precision, percent (small: below 32 x 32 pixels, large: from 96 x 96 on). Bold: the highest of a column; ±: the "
    "standard deviation over seeds, without which there was one. AP is the mean over IoU from 0.5 to 0.95 and over classes. A "
    f"dash: no object has that size. {AGAINST_TWIN}"
)


def section(inputs: Inputs) -> Section | None:
    """Tables and pictures for each data set; None where nothing was detected.

    Raises:
        BeyondClsError: a file is damaged.
    """
    if not inputs.detection:
        return None
    blocks = each_dataset("detection", inputs.detection, partial(_of_dataset, inputs))
    of_paper = (printed("table-5-v1"), printed("table-5-v1-differing"))
    return Section("detection", "Which objects are found", (Text(ABOUT), *blocks, *of_paper))


def _of_dataset(inputs: Inputs, dataset: str, name: str, results: Sequence[Detected]) -> list[Block]:
    blocks: list[Block] = [*warnings(results)]
    if notes := notes_of([(one.encoder, one.notes) for one in results], len(results)):
        blocks.append(Text("Noted when these were measured:", notes, "notice"))
    blocks += [_by_encoder(dataset, name, results, kind) for kind in KINDS if any(kind in one.measures for one in results)]
    blocks += [*_by_family(dataset, name, results), _settings(dataset, name, results)]
    return blocks + objects(inputs, dataset, name, results)


def _by_encoder(dataset: str, name: str, results: Sequence[Detected], kind: str) -> Table:
    """AP of boxes, or of masks."""
    columns = [ENCODER]
    columns += [
        Column(f"{kind}_{measure}", f"{kind.capitalize()} {words}", "spread", apart=measure == "ap_large")
        for measure, words in MEASURES.items()
    ]
    twins = [twin_of(one, results) for one in results]
    if any(twins):
        columns.append(Column("twin", "Twin", "text", apart=True))
        columns += interval_beside(Column(f"{kind}_ap_against_twin", "AP minus twin", "spread"))
    values = {m: [one.measures.get(kind, {}).get(m) for one in results] for m in MEASURES}
    columns_of = [with_best(of_all) for of_all in values.values()]
    rows = []
    for i, (one, twin) in enumerate(zip(results, twins, strict=True)):
        cells = [named(one.encoder, one.pretraining.is_untrained), *(column[i] for column in columns_of)]
        if any(twins):
            cells.append(Cell(twin.encoder, twin.encoder) if twin else NOTHING)
            of_twin = twin.measures.get(kind, {}).get("ap") if twin else None
            cells += with_interval(minus(values["ap"][i], one, of_twin, twin))
        rows.append(Row(tuple(cells), muted=one.pretraining.is_untrained))
    return with_known_intervals(Table(f"{name}-{kind}", f"{dataset}: {KINDS[kind]}", AP, tuple(columns), tuple(rows)))


def _by_family(dataset: str, name: str, results: Sequence[Detected]) -> list[Table]:
    """Box AP by size of encoders of other families against masked ones; nothing without such encoders."""
    columns = [ENCODER, Column("family", "Pretraining", "text"), Column("against", "Against", "text")]
    for size in SIZES:
        columns += interval_beside(Column(f"box_ap_{size}", f"AP, {size}", "spread", apart=True))
    rows = []
    for family, words in ((JOINT, "joint embedding"), (LABELS, "labels")):
        for one in (one for one in results if one.pretraining.family == family):
            for masked in (other for other in results if other.pretraining.family == MASKED):
                texts = (one.encoder, words, masked.encoder)
                cells = [Cell(text, text) for text in texts]
                for name_of_size in (f"ap_{size}" for size in SIZES):
                    pair = one.measures["box"][name_of_size], masked.measures["box"][name_of_size]
                    cells += with_interval(minus(pair[0], one, pair[1], masked))
                rows.append(Row(tuple(cells)))
    note = (
        "Box AP of encoders of other families minus that of masked ones, points. A dash: no object has that size. The paper "
        "finds boxes of DINO ahead of those of MAE at all sizes, and those of MAE after fine-tuning with labels ahead for "
        "large objects, behind for medium and small ones (Table 5 of v1)."
    )
    families = Table(f"{name}-families", f"{dataset}: boxes by family", note, tuple(columns), tuple(rows))
    return [with_known_intervals(families)] if rows else []


def _settings(dataset: str, name: str, results: Sequence[Detected]) -> Table:
    columns = (
        ENCODER,
        Column("preset", "Preset", "text"),
        Column("recipe", "Recipe", "text"),
        Column("detector", "Detector", "text"),
        Column("patches", "Patches", "text"),
        Column("seeds", "Seeds", "text"),
        Column("n_parameters", "Parameters"),
        Column("n_training", "Training images"),
        Column("n_test", "Test images", apart=True),
        *(Column(f"n_{size}", f"Objects in them, {size}") for size in SIZES),
    )
    rows = []
    for one in results:
        grid = " x ".join(map(str, one.shape[0]))
        texts = [one.preset, _pairs(one.recipe), _pairs(one.detector), grid, ", ".join(map(str, one.seeds))]
        cells = [named(one.encoder, one.pretraining.is_untrained), *(Cell(t, t) if t else NOTHING for t in texts)]
        counts = (one.n_parameters, one.n_training, one.n_test, *(one.n_objects[size] for size in SIZES))
        cells += [number(float(n), 0) for n in counts]
        rows.append(Row(tuple(cells), muted=one.pretraining.is_untrained))
    note = "How detectors were trained, and what they are built from. Options that were given beside a preset win."
    return Table(f"{name}-settings", f"{dataset}: how detectors were trained", note, columns, tuple(rows), folded=True)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
