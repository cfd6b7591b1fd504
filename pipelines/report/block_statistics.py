"""Attention statistics by block as a table: the numbers behind Fig. 3-6."""

from collections.abc import Mapping

from pipelines.report.aggregation_entropy import ENTROPY
from pipelines.report.content import Cell, Table
from pipelines.report.measured import Attention
from pipelines.report.statistic_names import in_order, titles
from pipelines.report.tables import EFFECTIVE, NOTHING, Declared, cells, each, effective, encoders, listed, table


def by_block(attention: Mapping[str, Attention]) -> Table:
    """A row for each encoder and block, a column for each statistic that any of them has."""
    shown = titles(attention.values())
    names = in_order(name for a in attention.values() for name, values in a.statistics.items() if values)
    by_median = {name for a in attention.values() for name in a.medians}
    rows = [
        (encoder, one, block)
        for encoder, one in attention.items()
        for block in range(max((len(values) for values in one.statistics.values()), default=0))
    ]

    def of_statistic(name: str) -> Declared:
        if name in by_median:
            return cells(f"{name}_median", f"{shown[name]}: median", lambda row: _median(row[1], name, row[2]))
        return cells(name, shown[name], lambda row: _cell(row[1].statistics.get(name, ()), row[2]), "spread")

    def entropy(row: tuple[str, Attention, int]) -> float | None:
        values = row[1].statistics.get(ENTROPY, ())
        return values[row[2]][0] if row[2] < len(values) else None

    statistics = each(names, of_statistic)
    if ENTROPY in names:
        patches = cells("effective_patches", "Effective patches", lambda row: effective(entropy(row)))
        statistics.insert(names.index(ENTROPY) + 1, patches)
    note = (
        "Mean ± standard deviation over test images, each averaged over attention heads; blocks are counted from 0. Shares are "
        f"of 1, entropies in nats. {EFFECTIVE}"
    )
    if by_median:
        note += " Unbounded ratios: median over test images and, in brackets, the quartiles."
    if lacking := [name for name, a in attention.items() if any(s in by_median - set(a.medians) for s in a.statistics)]:
        note += f" There are no medians of {listed(lacking)}; run `beyondcls attention` again."
    return table(
        "attention-by-block",
        "Attention statistics by block",
        note,
        rows,
        encoders(lambda row: row[0], [encoder for encoder, one in attention.items() if one.pretraining.is_untrained]),
        cells("block", "Block", lambda row: Cell(str(row[2]), row[2])),
        statistics,
        folded=True,
    )


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
