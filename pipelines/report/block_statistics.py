"""Attention statistics by block as a table: the numbers behind Fig. 3-6."""

from collections.abc import Mapping

from pipelines.report.attention_heads import NAMES
from pipelines.report.collect import Attention, is_random
from pipelines.report.content import Cell, Column, Row, Table
from pipelines.report.tables import NOTHING, named


def by_block(attention: Mapping[str, Attention]) -> Table:
    """A row for each encoder and block, a column for each statistic that any of them has."""
    found = {name for a in attention.values() for name, values in a.statistics.items() if values}
    names = [name for name in NAMES if name in found] + sorted(found - set(NAMES))
    columns = (
        Column("encoder", "Encoder", "text"),
        Column("block", "Block"),
        *(Column(name, NAMES.get(name, name), "spread") for name in names),
    )
    rows = []
    for encoder, measured in attention.items():
        for block in range(max((len(values) for values in measured.statistics.values()), default=0)):
            cells = [_cell(measured.statistics.get(name, ()), block) for name in names]
            rows.append(Row((named(encoder), Cell(str(block), block), *cells), muted=is_random(encoder)))
    note = (
        "Mean ± standard deviation over test images, each averaged over attention heads; blocks are counted from 0. Shares are "
        "of 1, entropies in nats."
    )
    return Table("attention-by-block", "Attention statistics by block", note, columns, tuple(rows), folded=True)


def _cell(values: tuple[tuple[float, float], ...], block: int) -> Cell:
    if block >= len(values):
        return NOTHING
    mean, std = values[block]
    return Cell(f"{_written(mean)} ± {_written(std)}", mean, std)


def _written(value: float) -> str:
    """Three decimals; ratios without bound that one image carries far away, as a power of ten."""
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1e}"
