"""Attention statistics by block as a table: the numbers behind Fig. 3-6."""

from collections.abc import Mapping

from pipelines.report.aggregation_entropy import ENTROPY
from pipelines.report.content import Cell, Column, Row, Table
from pipelines.report.measured import Attention
from pipelines.report.statistic_names import in_order, titles
from pipelines.report.tables import EFFECTIVE, NOTHING, effective, listed, named


def by_block(attention: Mapping[str, Attention]) -> Table:
    """A row for each encoder and block, a column for each statistic that any of them has."""
    shown = titles(attention.values())
    names = in_order(name for a in attention.values() for name, values in a.statistics.items() if values)
    by_median = {name for a in attention.values() for name in a.medians}
    columns = [Column("encoder", "Encoder", "text"), Column("block", "Block")]
    for name in names:
        is_median = name in by_median
        columns.append(Column(f"{name}_median", f"{shown[name]}: median") if is_median else Column(name, shown[name], "spread"))
        if name == ENTROPY:
            columns.append(Column("effective_patches", "Effective patches"))
    rows = []
    for encoder, measured in attention.items():
        for block in range(max((len(values) for values in measured.statistics.values()), default=0)):
            cells = []
            for name in names:
                values = measured.statistics.get(name, ())
                cells.append(_median(measured, name, block) if name in by_median else _cell(values, block))
                if name == ENTROPY:
                    cells.append(effective(values[block][0] if block < len(values) else None))
            is_untrained = measured.pretraining.is_untrained
            rows.append(Row((named(encoder, is_untrained), Cell(str(block), block), *cells), muted=is_untrained))
    note = (
        "Mean ± standard deviation over test images, each averaged over attention heads; blocks are counted from 0. Shares are "
        f"of 1, entropies in nats. {EFFECTIVE}"
    )
    if by_median:
        note += " Unbounded ratios: median over test images and, in brackets, the quartiles."
    if lacking := [name for name, a in attention.items() if any(s in by_median - set(a.medians) for s in a.statistics)]:
        note += f" There are no medians of {listed(lacking)}; run `beyondcls attention` again."
    return Table("attention-by-block", "Attention statistics by block", note, tuple(columns), tuple(rows), folded=True)


def _median(measured: Attention, name: str, block: int) -> Cell:
    """`0.12 (0.10–0.15)`."""
    values = measured.medians.get(name, ())
    if block >= len(values):
        return NOTHING
    median, lower, upper = values[block]
    return Cell(f"{_written(median)} ({_written(lower)}–{_written(upper)})", median)


def _cell(values: tuple[tuple[float, float], ...], block: int) -> Cell:
    if block >= len(values):
        return NOTHING
    mean, std = values[block]
    return Cell(f"{_written(mean)} ± {_written(std)}", mean, std)


def _written(value: float) -> str:
    """Three decimals; from 1000 on, as a single image can drive an unbounded ratio, a power of ten."""
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1e}"
