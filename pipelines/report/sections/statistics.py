"""Attention statistics: per block (Fig. 3-6), per attention head, and how evenly [cls] looks (Table 3, v2)."""

import math
import textwrap
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure as Plot

from pipelines.report.attention_statistics import FIGURES, by_block, in_order, statistics_table, titles, units
from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Figure, Figures, Heading, Section, Text
from pipelines.report.drawing import STYLE, WIDTH, Panel, drawn, lines, looks
from pipelines.report.measured import AttentionResult
from pipelines.report.published.printed import printed_table
from pipelines.report.reading import read, rows_of
from pipelines.report.tables import file_names

ALT = "A line over the blocks for each encoder, with a band of one standard deviation; numbers are in the table by block."
NATS = "nats"  # in the units of entropies, which are ln T at most
BLOCK, DEPTH = "block, counted from 0", "relative depth: block, counted from 1 / number of blocks"
ABOUT = (
    "Mean over attention heads and test images; band: one standard deviation over images. Dashed line: ln T, the entropy of "
    "even attention."
)
PER_HEAD = (
    "Mean over test images. A row is a block, the first on top; a column an attention head. One height for any number of "
    "blocks, one scale for all encoders."
)
N_COLUMNS = 3  # of panels


def section(inputs: Inputs) -> Section:
    """All encoders in each plot; a heat map for each statistic and encoder; a table of entropies."""
    figures = tuple(_figure(inputs, statistic) for statistic in FIGURES)
    legend = tuple(looks(inputs.encoders, inputs.untrained).values()) if any(figure.svg for figure in figures) else ()
    blocks: list[Block] = [*([Text(ABOUT)] if legend else []), Figures(figures, legend)]
    if by_head := head_figures(inputs):
        blocks += [Heading("Per attention head"), Text(PER_HEAD), Figures(by_head)]
    if any(attention.statistics for attention in inputs.attention.values()):
        ordered = {name: inputs.attention[name] for name in inputs.encoders if name in inputs.attention}
        blocks += [statistics_table(inputs), printed_table("table-3"), by_block(ordered)]
    return Section("attention", "Attention statistics", tuple(blocks))


def _figure(inputs: Inputs, statistic: str) -> Figure:
    name = file_names("statistic", [statistic])[statistic]
    known = {n: a for n in inputs.encoders if (a := inputs.attention.get(n)) and a.statistics.get(statistic)}
    missing = [n for n in inputs.encoders if n not in known]
    if not known:
        return Figure(name, statistic, "Not computed: no encoder has this statistic. Run `beyondcls attention`.", "", "")
    title, unit = titles(known.values())[statistic], units(known.values())[statistic]
    relative = len({len(attention.statistics[statistic]) for attention in known.values()}) > 1
    series = {}
    for encoder, attention in known.items():
        means, stds = zip(*attention.statistics[statistic], strict=True)
        places = [(block + 1) / len(means) if relative else block for block in range(len(means))]
        series[encoder] = (places, means, stds)
    counts = sorted({a.n_tokens for a in known.values() if a.n_tokens}) if NATS in unit else []
    levels = [(math.log(n), f"ln {n} = {math.log(n):.2f}") for n in counts]
    bottom = None if NATS in unit else 0
    panel = Panel(series, DEPTH if relative else BLOCK, unit, (bottom, None), levels, whole=not relative)
    caption = f"As Fig. {FIGURES[statistic]} of the paper." + (f" Not computed: {', '.join(missing)}." if missing else "")
    return lines(name, title, caption, ALT, [panel], looks(inputs.encoders, inputs.untrained))


def head_figures(inputs: Inputs) -> tuple[Figure, ...]:
    """A plot for each statistic that any encoder has per head; empty without such statistics."""
    by_encoder, medians = {}, by_median(inputs.attention.values())
    for encoder in inputs.encoders:
        attention = inputs.attention.get(encoder)
        if attention is not None and attention.heads is not None:
            by_encoder[encoder] = read(attention.heads, "beyondcls attention", partial(read_heads, medians=medians))
    ordered, shown = in_order(name for heads in by_encoder.values() for name in heads), titles(inputs.attention.values())
    files = file_names("heads", ordered)
    return tuple(
        _heat_maps(
            shown.get(name, name),
            files[name],
            inputs.encoders,
            {encoder: heads[name] for encoder, heads in by_encoder.items() if name in heads},
            name in medians,
        )
        for name in ordered
    )


def by_median(attention: Collection[AttentionResult]) -> set[str]:
    """Unbounded statistics whose medians are known for every encoder that has them."""
    names = {name for a in attention for name in a.medians}
    return {name for name in names if all(name in a.medians for a in attention if name in a.statistics)}


def read_heads(file: Path, medians: Collection[str] = ()) -> dict[str, Float[np.ndarray, "L H"]]:
    """By statistic, means over images; medians of the statistics in `medians`."""
    by_statistic: dict[str, dict[tuple[int, int], float]] = {}
    for row in rows_of(file):
        value = float(row["median" if row["statistic"] in medians else "mean"])
        by_statistic.setdefault(row["statistic"], {})[int(row["block"]), int(row["head"])] = value
    values = {}
    for name, entries in by_statistic.items():
        shape = tuple(max(place) + 1 for place in zip(*entries, strict=True))
        if len(entries) != np.prod(shape) or not np.isfinite(list(entries.values())).all():
            raise ValueError(
                f"{name} has {len(entries)} numbers, not all finite, or not one for each of {shape} blocks and heads"
            )
        values[name] = np.array([entries[place] for place in sorted(entries)]).reshape(shape)
    return values


def _heat_maps(
    title: str, file: str, encoders: list[str], series: Mapping[str, Float[np.ndarray, "L H"]], median: bool
) -> Figure:
    low, high = min(v.min() for v in series.values()), max(v.max() for v in series.values())
    n_rows = -(-len(series) // N_COLUMNS)
    with matplotlib.rc_context(
        STYLE | {"axes.spines.top": True, "axes.spines.right": True, "axes.grid": False, "font.size": 8}
    ):
        plot = Plot(figsize=(WIDTH[0], 0.5 + 1.75 * n_rows))
        panels = plot.subplots(n_rows, N_COLUMNS, squeeze=False).ravel()
        for panel in panels[len(series) :]:
            panel.remove()
        for panel, (encoder, values) in zip(panels, series.items(), strict=False):
            drawing = panel.imshow(values, vmin=low, vmax=high, cmap="viridis", interpolation="none", aspect="auto")
            panel.set_title("\n".join(textwrap.wrap(encoder, 20)), fontsize=8)
            panel.set_xticks(sorted({0, values.shape[1] - 1}))
            panel.set_yticks(sorted({0, len(values) - 1}))
            if panel.get_subplotspec().is_first_col():
                panel.set_ylabel("block")
            if panel.get_subplotspec().is_last_row():
                panel.set_xlabel("head")
        plot.colorbar(drawing, ax=list(panels[: len(series)]), orientation="horizontal", aspect=40, pad=0.02)
    ranges = " ".join(
        f"{encoder}: from {values.min():.2f} to {values.max():.2f} over {len(values)} blocks of {values.shape[1]} heads."
        for encoder, values in series.items()
    )
    missing = [encoder for encoder in encoders if encoder not in series]
    caption = "Median over test images, as it has no bound." if median else ""
    caption += f"{' ' if median else ''}Not computed: {', '.join(missing)}." if missing else ""
    return drawn(plot, file, title, caption, f"{title}, block by head. {ranges}")
