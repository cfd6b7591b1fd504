"""Which block holds what: accuracy of [cls] and of the average patch of every block, of AbMILP on those that keep tokens."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Figure, Figures, Look, Section, Table, Text
from pipelines.report.contrasts import VERDICTS
from pipelines.report.dense import result_of
from pipelines.report.drawing import Panel, limits, lines, looks
from pipelines.report.estimate import Estimate, Variation, of_measure
from pipelines.report.kinds import LINEAR
from pipelines.report.measured import FIRST_HEADS, Entries, Measure
from pipelines.report.reading import files_in, read
from pipelines.report.remarks import AXES
from pipelines.report.tables import (
    NOTHING,
    cells,
    each,
    encoders,
    file_names,
    means,
    numbers,
    plus_minus,
    signed,
    table,
    texts,
    title,
)

Series = Mapping[int, Measure]  # by block
LEVEL = 0.05  # of the test that a block is ahead, corrected for the number of blocks that it was chosen from
ABOUT = (
    "A linear head on the vectors of each block before the final norm, all trained alike, and protocols without gradient "
    "steps where named. Heads that weight patches are measured on the blocks whose patch tokens are kept."
)
NOTE = (
    "Accuracy on the test images, %, mean over seeds; mAP of images with several labels. Bold: the best block of a row. "
    "Ahead of the last block: at the level of 5 %, over seeds and over test images (of either block), corrected for the "
    "blocks that it was chosen from; not shown of mAP, nor with one seed. Bytes: of one block, as stored."
)


def section(inputs: Inputs) -> Section | None:
    """None where `beyondcls blocks` was not run."""
    if not (studies := by_block(inputs)):
        return None
    by_name = looks(list(dict.fromkeys(name for study in studies for name in study.series)))
    files = file_names("by-block", [study.encoder for study in studies])
    shared = limits(measure for study in studies for series in study.series.values() for measure in series.values())
    figures = tuple(figure_of(study, files[study.encoder], by_name, shared) for study in studies)
    return Section("by-block", "Accuracy by block", (Text(ABOUT), Figures(figures, tuple(by_name.values())), _table(studies)))


def read_by_block(file: Path) -> Entries:
    """The study in a metrics.json: its entries, and `series` by name ("[cls]", "[cls], knn"), percent; `nbytes` of an image."""

    def build(file: Path) -> Entries:
        series = dict[str, dict[int, Measure]]()
        for row in rows:
            measured = row[study.measure]
            if not isinstance(measured, Measure):
                raise ValueError(f"{study.measure} of block {row.block} is no number over seeds")
            series.setdefault(_series_name(row), {})[int(row.block)] = measured
        return Entries(study, series=series, nbytes={_series_name(row): int(row.bytes_per_image) for row in rows})

    study = result_of(file, "blocks")
    rows = sorted(study.rows, key=_sort_key)
    return read(file, "beyondcls blocks", build)


def by_block(inputs: Inputs) -> list[Entries]:
    """Studies of the encoders that the report shows, in its order."""
    studies = {study.encoder: study for study in map(read_by_block, files_in(inputs.folders.blocks, "*/metrics.json"))}
    return [studies[encoder] for encoder in inputs.encoders if encoder in studies]


def _sort_key(row: Entries) -> tuple[bool, str, int, str, int]:
    """Trained heads come first; of these [cls], average, AbMILP, and others by name; and blocks ascend."""
    known = FIRST_HEADS.index(row.head) if row.head in FIRST_HEADS else len(FIRST_HEADS)
    return row.protocol != LINEAR, row.protocol, known, row.head, int(row.block)


def _series_name(row: Entries) -> str:
    """`[cls]`, `average, knn`."""
    return title(row.head) + ("" if row.protocol == LINEAR else f", {row.protocol}")


def figure_of(
    study: Entries,
    name: str,
    by_name: Mapping[str, Look] | None = None,
    limits: tuple[float | None, float | None] = (None, None),
) -> Figure:
    """A line over the blocks for each series.

    Args:
        name: of its files.
        by_name: how series are drawn.
        limits: of the axis of accuracies, if plots share them.
    """
    words = "; ".join(
        f"{series_name}: {', '.join(f'{plus_minus(reached)} % in block {block}' for block, reached in series.items())}"
        for series_name, series in study.series.items()
    )
    series = {key: ([*of], [m.mean for m in of.values()], [m.std for m in of.values()]) for key, of in study.series.items()}
    panel = Panel(series, "block, counted from 0", AXES[study.measure], limits)
    caption, alt = "Bands: ± one standard deviation over seeds.", f"Accuracy of {study.encoder} by block. {words}."
    return lines(name, study.encoder, caption, alt, [panel], by_name or looks(list(series)))


def _table(studies: list[Entries]) -> Table:
    """A row for each encoder and series, a column for each block."""
    blocks = sorted({block for study in studies for series in study.series.values() for block in series})
    rows = []
    for study in studies:
        last = max(block for series in study.series.values() for block in series)
        for name, series in study.series.items():
            best = max(series, key=lambda block: series[block].mean) if len(series) > 1 else None
            lead = _lead(series, best, last, study) if best is not None and last in series else None
            rows.append(Entries(study=study, name=name, series=series, best=best, lead=lead))

    def verdict(row: Entries) -> str | None:
        return row.lead and VERDICTS[int(row.lead.p is not None and row.lead.p * (len(row.series) - 1) < LEVEL)]

    return table(
        "by-block",
        "Accuracy by block",
        NOTE,
        rows,
        encoders(lambda row: row.study),
        texts("head", "Head", lambda row: row.name),
        each(blocks, lambda b: means(f"block_{b}", f"block {b}", lambda row: row.series.get(b), best="row"), apart=True),
        numbers("best_block", "best block", lambda row: row.best, 0, apart=True),
        cells("against_last", "− last block", lambda row: Cell(signed(row.lead.mean), row.lead.mean) if row.lead else NOTHING),
        texts("verdict", "Verdict", verdict),
        numbers("bytes", "bytes an image", lambda row: row.study.nbytes[row.name], 0, apart=True),
    )


def _lead(series: Series, block: int, last: int, study: Entries) -> Estimate:
    """Of a block over the last; over images as if each block had been tested on others."""
    lead = of_measure(series[block], "", f"block {block}").minus(of_measure(series[last], "", f"block {last}"))
    if study.measure != "top1":
        return lead
    shares = [series[b].mean / 100 for b in (block, last)]
    units = 100 * math.sqrt(sum(share * (1 - share) for share in shares)) * np.resize([1.0, -1.0], study.n_test)
    return replace(lead, effects={**lead.effects, Variation("images", "of either block"): units})
