"""Attention statistics: per block (Fig. 3-6), per attention head, and how evenly [cls] looks (Table 3, v2)."""

import math
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import MaxNLocator

from pipelines.report.attention_heads import head_figures
from pipelines.report.attention_statistics import FIGURES, by_block, measured, titles, units
from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Figure, Figures, Heading, Look, Section, Text
from pipelines.report.drawing import INK, STYLE, colour, drawn, looks
from pipelines.report.measured import Attention
from pipelines.report.published.printed import printed
from pipelines.report.tables import file_names

ALT = (
    "The statistic over the blocks, a line for each encoder with a band of one standard deviation over images. The numbers are "
    "in the table of attention statistics by block."
)
NATS = "nats"  # in the units of entropies, which are ln T at most


def section(inputs: Inputs) -> Section:
    """All encoders in each plot; a heat map for each statistic and encoder; a table of entropies."""
    figures = tuple(_figure(inputs, statistic) for statistic in FIGURES)
    blocks: list[Block] = []
    if any(figure.svg for figure in figures):
        blocks.append(
            Text(
                "Mean over attention heads and test images; the band is one standard deviation over images. The dashed "
                "horizontal line is ln T, the entropy of attention spread evenly over all T patches."
            )
        )
    blocks.append(
        Figures(
            figures, tuple(looks(inputs.encoders, inputs.untrained).values()) if any(figure.svg for figure in figures) else ()
        )
    )
    if by_head := head_figures(inputs):
        text = (
            "Mean over test images. A row is a block, the first on top; a column is an attention head. All panels have one "
            "height for any number of blocks, so rows side by side are of the same relative depth. One scale for "
            "all encoders."
        )
        blocks += [Heading("Per attention head"), Text(text), Figures(by_head)]
    if any(attention.statistics for attention in inputs.attention.values()):
        blocks += [measured(inputs), printed("table-3"), by_block(_in_order(inputs))]
    return Section("attention", "Attention statistics", tuple(blocks))


def _in_order(inputs: Inputs) -> dict[str, Attention]:
    return {name: inputs.attention[name] for name in inputs.encoders if name in inputs.attention}


def _figure(inputs: Inputs, statistic: str) -> Figure:
    name = file_names("statistic", [statistic])[statistic]
    series = {n: a for n in inputs.encoders if (a := inputs.attention.get(n)) and a.statistics.get(statistic)}
    missing = [n for n in inputs.encoders if n not in series]
    if not series:
        return Figure(name, statistic, "Not computed: no encoder has this statistic. Run `beyondcls attention`.", "", "")
    title, unit = titles(series.values())[statistic], units(series.values())[statistic]
    by_encoder = looks(inputs.encoders, inputs.untrained)
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(4.6, 2.9))
        axes = plot.subplots()
        depths = {len(attention.statistics[statistic]) for attention in series.values()}
        for encoder, attention in series.items():
            _line(axes, by_encoder[encoder], attention, statistic, relative=len(depths) > 1)
        if NATS in unit:
            _ceilings(axes, {a.n_tokens for a in series.values() if a.n_tokens})
        else:
            axes.set_ylim(bottom=0)
        if len(depths) > 1:
            axes.set_xlabel("relative depth: block, counted from 1 / number of blocks")
            axes.set_xlim(0, 1.02)
        else:
            axes.set_xlabel("block, counted from 0")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(unit)
    caption = f"As Fig. {FIGURES[statistic]} of the paper." + (f" Not computed: {', '.join(missing)}." if missing else "")
    return drawn(plot, name, title, caption, ALT, [by_encoder[encoder] for encoder in series])


def _ceilings(axes: Axes, counts: set[int]) -> None:
    """A line at ln T for each number of patches."""
    for n_tokens in sorted(counts):
        limit = math.log(n_tokens)
        axes.axhline(limit, color=INK, linewidth=0.9, linestyle=(0, (5, 3)), alpha=0.75)
        text = f"ln {n_tokens} = {limit:.2f}"
        axes.annotate(text, (1, limit), (0, 3), ("axes fraction", "data"), "offset points", ha="right")


def _line(axes: Axes, look: Look, attention: Attention, name: str, relative: bool) -> None:
    """Over blocks, or over relative depth, where encoders differ in their number of blocks."""
    mean = [m for m, _ in attention.statistics[name]]
    std = [s for _, s in attention.statistics[name]]
    places = [(block + 1) / len(mean) if relative else block for block in range(len(mean))]
    low, high = [m - s for m, s in zip(mean, std, strict=True)], [m + s for m, s in zip(mean, std, strict=True)]
    dash: Any = look.dash
    axes.fill_between(places, low, high, color=colour(look), alpha=0.16, linewidth=0)
    axes.plot(places, mean, color=colour(look), linestyle=dash, marker=look.marker)
