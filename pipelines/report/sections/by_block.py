"""Which block holds what: accuracy of [cls] and of the average patch of every block, of AbMILP on those that keep tokens."""

import math
from dataclasses import replace

import numpy as np

from pipelines.report.by_block import Series, by_block, figure_of, looks_of
from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Figures, Section, Table, Text
from pipelines.report.contrasts import VERDICTS
from pipelines.report.drawing import limits
from pipelines.report.estimate import Estimate, Source, of_measure
from pipelines.report.measured import Entries
from pipelines.report.tables import NOTHING, cells, each, encoders, file_names, numbers, signed, table, texts

LEVEL = 0.05  # of the test that a block is ahead, corrected for the number of blocks that it was chosen from
ABOUT = (
    "A linear head on the vectors of each block by itself, all trained alike, and protocols without gradient steps where they "
    "are named. Vectors are taken before the final norm. They take a small part of the bytes of patch tokens, so that all "
    "blocks' are kept. Heads that weight patches are measured on the blocks whose patch tokens are kept, and trained like the "
    "others."
)
NOTE = (
    "Accuracy on the test images, %, mean over seeds; mAP of images with several labels. Bold: the best block of a row. "
    "Its lead over the last block, in points, is called ahead where it is so at the level of 5 %, over seeds and over "
    "test images (of either block, as which are right is not kept), corrected for the blocks that it was chosen from; it "
    "is not shown of mAP, nor with one seed. Bytes: of one block, as they are stored."
)


def section(inputs: Inputs) -> Section | None:
    """None where `beyondcls blocks` was not run."""
    studies = by_block(inputs)
    if not studies:
        return None
    return Section("by-block", "Accuracy by block", (Text(ABOUT), _figures(studies), _table(studies)))


def _figures(studies: list[Entries]) -> Figures:
    """A plot for each encoder, on the same axes where they have the same measure."""
    by_name, files = looks_of(studies), file_names("by-block", [study.encoder for study in studies])
    shared = limits(measure for study in studies for series in study.series.values() for measure in series.values())
    figures = tuple(figure_of(study, files[study.encoder], by_name, shared) for study in studies)
    return Figures(figures, tuple(by_name.values()))


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
        each(
            blocks,
            lambda b: numbers(f"block_{b}", f"block {b}", lambda row: getattr(row.series.get(b), "mean", None), 1, best="row"),
            apart=True,
        ),
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
    return replace(lead, effects={**lead.effects, Source("images", "of either block"): units})
