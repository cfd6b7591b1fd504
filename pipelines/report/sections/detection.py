"""Objects and their masks, detected from patch tokens: AP by size, beside Table 5 of the paper's first version."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Column, Row, Section, Table, Text
from pipelines.report.dense import apart, notes_of, twin_of, warnings, within_spread
from pipelines.report.detected import KINDS, MEASURES, SIZES, Detected
from pipelines.report.each_dataset import each_dataset
from pipelines.report.galleries.predictions import objects
from pipelines.report.measured import Measure
from pipelines.report.published.printed import printed
from pipelines.report.tables import NOTHING, change, listed, named, number, spread, unbroken, unbroken_mean
from store.format.pretraining import JOINT, LABELS, MASKED

ENCODER = Column("encoder", "Encoder", "text")
ABOUT = (
    "Without training the encoder: Mask R-CNN over a pyramid of the patch tokens of one block learns to find objects and their "
    "masks. Average precision (AP) is COCO's, at the pixels of the originals, of all their objects: those that a crop does not "
    "show count as missed."
)


def section(inputs: Inputs) -> Section | None:
    """Tables, pictures and what they say, for each data set; None where nothing was detected.

    Raises:
        BeyondClsError: a file is damaged.
    """
    if not inputs.detection:
        return None
    blocks = each_dataset("detection", inputs.detection, partial(_of_dataset, inputs))
    of_paper = (printed("table-5-v1"), printed("table-5-v1-differing"))
    return Section("detection", "Which objects are found", (Text(ABOUT), *blocks, *of_paper))


def _of_dataset(inputs: Inputs, dataset: str, name: str, results: Sequence[Detected]) -> list[Block]:
    blocks: list[Block] = [Text(sentence, kind="notice") for sentence in warnings(results)]
    blocks += [Text(sentence, kind="finding") for sentence in (*_findings(dataset, results), *_by_family(dataset, results))]
    if notes := notes_of([(one.encoder, one.notes) for one in results], len(results)):
        blocks.append(Text("Noted when these were measured:", notes, "notice"))
    blocks += [_by_encoder(dataset, name, results, kind) for kind in KINDS if any(kind in one.measures for one in results)]
    blocks.append(_settings(dataset, name, results))
    return blocks + objects(inputs, dataset, name, results)


def _findings(dataset: str, results: Sequence[Detected]) -> list[str]:
    """AP of boxes and masks, beside the random twin."""
    sentences = []
    for one in results:
        twin = twin_of(one, results)
        parts = []
        for kind in one.measures:
            if (ap := one.measures[kind]["ap"]) is None:
                continue
            against = apart(ap, twin.measures.get(kind, {}).get("ap")) if twin else None
            beside = "" if against is None else f", {unbroken(against)} against the twin{within_spread(against)}"
            parts.append(f"{unbroken_mean(ap)} ({KINDS[kind]}{beside})")
        if parts and not one.pretraining.is_untrained:
            whose = "" if twin is None else f"; its twin is {twin.encoder}"
            sentences.append(f"{one.encoder} reaches {listed(parts)}{whose}.")
    if not sentences:
        return []
    single = all(len(one.seeds) < 2 for one in results)
    basis = "One seed each: what another one would change is unknown." if single else "± is over seeds."
    return [f"AP on {dataset}, percent: {' '.join(sentences)} {basis} What other test images would change is not in it."]


def _by_family(dataset: str, results: Sequence[Detected]) -> list[str]:
    """What the paper says of Table 5 (v1), and the same differences here, by size; nothing without such encoders."""
    of = {kind: [one for one in results if one.pretraining.family == kind] for kind in (JOINT, LABELS, MASKED)}
    sentences = []
    for above, words in ((JOINT, "of joint embedding"), (LABELS, "trained with labels")):
        for one in of[above]:
            for masked in of[MASKED]:
                differences = {size: _box(one, masked, size) for size in SIZES}
                parts = [f"{unbroken(value)} ({size})" for size, value in differences.items() if value is not None]
                if parts:
                    sentences.append(f"{one.encoder}, {words}, is at {', '.join(parts)} against {masked.encoder}")
    if not sentences:
        return []
    return [
        "The paper finds boxes of DINO ahead of those of MAE at all sizes, and those of MAE after fine-tuning with labels "
        "ahead for large objects, behind for medium and small ones (Table 5 of v1). In points of box AP on "
        f"{dataset}: {'; '.join(sentences)}."
    ]


def _box(one: Detected, other: Detected, size: str) -> Measure | None:
    return apart(one.measures["box"][f"ap_{size}"], other.measures["box"][f"ap_{size}"])


def _by_encoder(dataset: str, name: str, results: Sequence[Detected], kind: str) -> Table:
    """AP of boxes, or of masks."""
    columns = [ENCODER]
    columns += [
        Column(f"{kind}_{measure}", f"{kind.capitalize()} {words}", "spread", apart=measure == "ap_large")
        for measure, words in MEASURES.items()
    ]
    twins = [twin_of(one, results) for one in results]
    if any(twins):
        columns.append(Column(f"{kind}_ap_against_twin", "AP minus twin", "spread", apart=True))
    values = {m: [one.measures.get(kind, {}).get(m) for one in results] for m in MEASURES}
    highest = {m: max((round(v.mean, 1) for v in of_all if v), default=None) for m, of_all in values.items()}
    rows = []
    for i, (one, twin) in enumerate(zip(results, twins, strict=True)):
        cells = [named(one.encoder, one.pretraining.is_untrained)]
        cells += [spread(v := values[m][i], best=v is not None and round(v.mean, 1) == highest[m]) for m in MEASURES]
        if any(twins):
            cells.append(change(apart(values["ap"][i], twin.measures.get(kind, {}).get("ap") if twin else None)))
        rows.append(Row(tuple(cells), muted=one.pretraining.is_untrained))
    n = " or ".join(f"{n:,}" for n in sorted({one.n_test for one in results}))
    counted = results[0].n_objects
    sizes = ", ".join(f"{counted[size]:,} {size}" for size in SIZES)
    note = (
        f"Average precision of {KINDS[kind]}, percent; {n} test images with {sizes} objects (small: below 32 x 32 pixels, "
        "large: from 96 x 96 on). AP is the mean over IoU from 0.5 to 0.95 and over classes. A dash: no object has that size. "
        "Mean ± standard deviation over seeds where there are several. Minus twin: the difference to the random twin, in "
        "points. Bold: the highest of a column."
    )
    return Table(f"{name}-{kind}", f"{dataset}: {KINDS[kind]}", note, tuple(columns), tuple(rows))


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
    )
    rows = []
    for one in results:
        grid = " x ".join(map(str, one.shape[0]))
        texts = [one.preset, _pairs(one.recipe), _pairs(one.detector), grid, ", ".join(map(str, one.seeds))]
        cells = [named(one.encoder, one.pretraining.is_untrained), *(Cell(t, t) if t else NOTHING for t in texts)]
        cells += [number(float(n), 0) for n in (one.n_parameters, one.n_training)]
        rows.append(Row(tuple(cells), muted=one.pretraining.is_untrained))
    note = "How detectors were trained, and what they are built from. Options that were given beside a preset win."
    return Table(f"{name}-settings", f"{dataset}: how detectors were trained", note, columns, tuple(rows), folded=True)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
