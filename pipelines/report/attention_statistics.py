"""Attention statistics as tables: by block (Fig. 3-6), and how evenly [cls] gathers the patches (Table 3, v2)."""

import math
from collections.abc import Iterable, Mapping

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Table
from pipelines.report.measured import AttentionResult
from pipelines.report.tables import EFFECTIVE, NOTHING, DeclaredColumn, cells, each, effective, encoders, listed, numbers, table

ENTROPY = "cls_patch_entropy"
UNIFORM = "no [cls]: uniform"
# Those of the paper come first, with the numbers of their figures.
FIGURES = {"cls_self": 3, "cls_patch_entropy": 4, "patch_self": 5, "patch_patch_entropy": 6}


def in_order(names: Iterable[str]) -> list[str]:
    """Each statistic once: the paper's, then others as they come."""
    each_once = dict.fromkeys(names)
    return [*(name for name in FIGURES if name in each_once), *(name for name in each_once if name not in FIGURES)]


def titles(attention: Iterable[AttentionResult]) -> dict[str, str]:
    """What each statistic is, by its name."""
    return {name: title for a in attention for name, (title, _) in a.declared.items()}


def units(attention: Iterable[AttentionResult]) -> dict[str, str]:
    """The unit of each statistic, by its name."""
    return {name: unit for a in attention for name, (_, unit) in a.declared.items()}


def over_blocks(attention: AttentionResult) -> float | None:
    """Entropy of the attention of [cls] to the patches, mean over blocks, heads and images, nats; None if not computed."""
    values = attention.statistics.get(ENTROPY)
    return sum(mean for mean, _ in values) / len(values) if values else None


def last_block(attention: AttentionResult) -> float | None:
    """The same of the last block alone."""
    values = attention.statistics.get(ENTROPY)
    return values[-1][0] if values else None


def limit(attention: AttentionResult) -> float | None:
    """ln T, nats."""
    return math.log(attention.n_tokens) if attention.n_tokens else None


def statistics_table(inputs: Inputs) -> Table:
    """A row for each encoder with attention statistics; ln T for one without [cls], as its patches are averaged."""

    def over_all(one: AttentionResult) -> float | None:
        return limit(one) if _lacks_cls(inputs, one.encoder) else over_blocks(one)

    def share(one: AttentionResult) -> float | None:
        entropy, highest = over_all(one), limit(one)
        return 100 * entropy / highest if entropy is not None and highest else None

    def name(one: AttentionResult) -> Cell:
        return Cell(one.encoder, one.encoder, tag=UNIFORM if _lacks_cls(inputs, one.encoder) else "")

    note = (
        "Entropy of the attention of [cls] to the patches, nats, mean over blocks, attention heads and test images; ln T, "
        "the highest there is, for an encoder without [cls], whose patches are averaged. Entropies are compared between "
        f"encoders of equal T only. {EFFECTIVE}"
    )
    return table(
        "aggregation-entropy",
        "How evenly [cls] gathers the patches",
        note,
        [inputs.attention[encoder] for encoder in inputs.encoders if encoder in inputs.attention],
        cells("encoder", "Encoder", name, "text"),
        numbers("entropy", "Entropy", over_all),
        cells("effective_patches", "Effective patches", lambda one: effective(over_all(one))),
        numbers("share", "Share of ln T, %", share, 1),
        numbers("last_block", "Entropy in the last block", last_block, apart=True),
        cells("effective_patches_last_block", "Effective patches there", lambda one: effective(last_block(one))),
        numbers("ln_T", "ln T", limit, apart=True),
        numbers("n_tokens", "T", lambda one: one.n_tokens, 0),
        muted=lambda one: one.encoder in inputs.untrained,
    )


def _lacks_cls(inputs: Inputs, encoder: str) -> bool:
    """Statistics were computed, but none of [cls]; none of its maps was kept, and no head reads it."""
    attention = inputs.attention[encoder]
    of_cls = any(name.startswith("cls_") for name in attention.statistics)
    return bool(attention.statistics) and not of_cls and attention.cls_map is None and (encoder, "cls") not in inputs.probes


def by_block(attention: Mapping[str, AttentionResult]) -> Table:
    """A row for each encoder and block, a column for each statistic that any of them has."""
    shown = titles(attention.values())
    names = in_order(name for a in attention.values() for name, values in a.statistics.items() if values)
    by_median = {name for a in attention.values() for name in a.medians}
    rows = [
        (encoder, one, block)
        for encoder, one in attention.items()
        for block in range(max((len(values) for values in one.statistics.values()), default=0))
    ]

    def of_statistic(name: str) -> DeclaredColumn:
        if name in by_median:
            return cells(f"{name}_median", f"{shown[name]}: median", lambda row: _median_cell(row[1], name, row[2]))
        return cells(name, shown[name], lambda row: _cell(row[1].statistics.get(name, ()), row[2]), "spread")

    def entropy(row: tuple[str, AttentionResult, int]) -> float | None:
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


def _median_cell(measured: AttentionResult, name: str, block: int) -> Cell:
    """`0.12 (0.10–0.15)`."""
    values = measured.medians.get(name, ())
    if block >= len(values):
        return NOTHING
    median, lower, upper = values[block]
    return Cell(f"{_format_value(median)} ({_format_value(lower)}–{_format_value(upper)})", median)


def _cell(values: tuple[tuple[float, float], ...], block: int) -> Cell:
    if block >= len(values):
        return NOTHING
    mean, std = values[block]
    return Cell(f"{_format_value(mean)} ± {_format_value(std)}", mean, std)


def _format_value(value: float) -> str:
    """Three decimals; from 1000 on, as a single image can drive an unbounded ratio, a power of ten."""
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1e}"
