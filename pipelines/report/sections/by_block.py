"""Which block holds what: accuracy of [cls] and of the average patch of every block, of AbMILP on those that keep tokens."""

import math
from dataclasses import replace

import numpy as np

from pipelines.report.by_block import ByBlock, Series, by_block, figure_of, looks_of
from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Column, Figures, Row, Section, Table, Text
from pipelines.report.contrasts import VERDICTS
from pipelines.report.drawing import limits
from pipelines.report.estimate import Estimate, Source, of_measure
from pipelines.report.tables import NOTHING, file_names, named, number, signed

LEVEL = 0.05  # of the test that a block is ahead, corrected for the number of blocks that it was chosen from
ABOUT = (
    "A linear head on the vectors of each block by itself, all trained alike, and protocols without gradient steps where they "
    "are named. Vectors are taken before the final norm. They take a small part of the bytes of patch tokens, so that all "
    "blocks' are kept. Heads that weight patches are measured on the blocks whose patch tokens are kept, and trained like the "
    "others."
)


def section(inputs: Inputs) -> Section | None:
    """None where `beyondcls blocks` was not run."""
    studies = by_block(inputs)
    if not studies:
        return None
    return Section("by-block", "Accuracy by block", (Text(ABOUT), _figures(studies), _table(inputs, studies)))


def _figures(studies: dict[str, ByBlock]) -> Figures:
    """A plot for each encoder, on the same axes where they have the same measure."""
    by_name, files = looks_of(studies.values()), file_names("by-block", list(studies))
    reached = [measure for study in studies.values() for series in study.series.values() for measure in series.values()]
    shared = limits(reached)
    figures = tuple(figure_of(study, files[name], by_name, shared) for name, study in studies.items())
    return Figures(figures, tuple(by_name.values()))


def _table(inputs: Inputs, studies: dict[str, ByBlock]) -> Table:
    """A row for each encoder and series, a column for each block."""
    blocks = sorted({block for study in studies.values() for series in study.series.values() for block in series})
    columns = (
        Column("encoder", "Encoder", "text"),
        Column("head", "Head", "text"),
        *(Column(f"block_{block}", f"block {block}", apart=place == 0) for place, block in enumerate(blocks)),
        Column("best_block", "best block", apart=True),
        Column("against_last", "− last block"),
        Column("verdict", "Verdict", "text"),
        Column("bytes", "bytes an image", apart=True),
    )
    rows = []
    for encoder, study in studies.items():
        for name, series in study.series.items():
            most = max(f"{measure.mean:.1f}" for measure in series.values()) if len(series) > 1 else None
            cells = [_reached(series, block, most) for block in blocks]
            head = Cell(name, name)
            rows.append(
                Row(
                    (
                        named(encoder, encoder in inputs.untrained),
                        head,
                        *cells,
                        *_best(series, study),
                        number(study.nbytes[name], 0),
                    )
                )
            )
    note = (
        "Accuracy on the test images, %, mean over seeds; mAP of images with several labels. Bold: the best block of a row. "
        "Its lead over the last block, in points, is called ahead where it is so at the level of 5 %, over seeds and over "
        "test images (of either block, as which are right is not kept), corrected for the blocks that it was chosen from; it "
        "is not shown of mAP, nor with one seed. Bytes: of one block, as they are stored."
    )
    return Table("by-block", "Accuracy by block", note, columns, tuple(rows))


def _best(series: Series, study: ByBlock) -> tuple[Cell, Cell, Cell]:
    """The best block, how much more it reaches than the last, and whether that is clear."""
    if len(series) < 2:
        return NOTHING, NOTHING, NOTHING
    block, last = max(series, key=lambda b: series[b].mean), study.last
    shown = Cell(str(block), block)
    if last not in series:
        return shown, NOTHING, NOTHING
    lead = _lead(series, block, last, study)
    verdict = VERDICTS[int(lead.p is not None and lead.p * (len(series) - 1) < LEVEL)]
    return shown, Cell(signed(lead.mean), lead.mean), Cell(verdict, verdict)


def _lead(series: Series, block: int, last: int, study: ByBlock) -> Estimate:
    """Of a block over the last; over images as if each block had been tested on others."""
    lead = of_measure(series[block], "", f"block {block}").minus(of_measure(series[last], "", f"block {last}"))
    if study.measure != "top1":
        return lead
    shares = [series[b].mean / 100 for b in (block, last)]
    units = 100 * math.sqrt(sum(share * (1 - share) for share in shares)) * np.resize([1.0, -1.0], study.n_test)
    return replace(lead, effects={**lead.effects, Source("images", "of either block"): units})


def _reached(series: Series, block: int, most: str | None) -> Cell:
    if block not in series:
        return NOTHING
    mean = series[block].mean
    return Cell(f"{mean:.1f}", mean, best=f"{mean:.1f}" == most)
