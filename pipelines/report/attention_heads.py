"""Attention statistics per block and attention head: a plot for each statistic, a heat map for each encoder in it."""

import csv
import textwrap
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure as Plot

from pipelines.report.attention_statistics import in_order, titles
from pipelines.report.collect import Inputs
from pipelines.report.content import Figure
from pipelines.report.drawing import STYLE, WIDTH, drawn
from pipelines.report.measured import Attention
from pipelines.report.reading import read
from pipelines.report.tables import file_names

N_COLUMNS = 3


def head_figures(inputs: Inputs) -> tuple[Figure, ...]:
    """A plot for each statistic that any encoder has per head; empty without such statistics.

    Raises:
        BeyondClsError: a heads.csv is damaged.
    """
    by_encoder, medians = {}, by_median(inputs.attention.values())
    for encoder in inputs.encoders:
        attention = inputs.attention.get(encoder)
        if attention is not None and attention.heads is not None:
            by_encoder[encoder] = read(attention.heads, "beyondcls attention", partial(read_heads, medians=medians))
    ordered, shown = in_order(name for heads in by_encoder.values() for name in heads), titles(inputs.attention.values())
    files = file_names("heads", ordered)
    return tuple(
        _figure(
            shown.get(name, name),
            files[name],
            inputs.encoders,
            {encoder: heads[name] for encoder, heads in by_encoder.items() if name in heads},
            name in medians,
        )
        for name in ordered
    )


def by_median(attention: Collection[Attention]) -> set[str]:
    """Unbounded statistics whose medians are known for every encoder that has them."""
    names = {name for a in attention for name in a.medians}
    return {name for name in names if all(name in a.medians for a in attention if name in a.statistics)}


def read_heads(file: Path, medians: Collection[str] = ()) -> dict[str, Float[np.ndarray, "L H"]]:
    """By statistic, means over images; medians of the statistics in `medians`.

    Raises:
        KeyError: the file is not as the stage writes it.
        ValueError: the file is not as the stage writes it.
    """
    by_statistic: dict[str, dict[tuple[int, int], float]] = {}
    with file.open(newline="", encoding="utf-8") as source:
        for row in csv.DictReader(source):
            by_statistic.setdefault(row["statistic"], {})[int(row["block"]), int(row["head"])] = float(
                row["median" if row["statistic"] in medians else "mean"]
            )
    values = {}
    for name, entries in by_statistic.items():
        shape = tuple(max(place) + 1 for place in zip(*entries, strict=True))
        if len(entries) != np.prod(shape) or not np.isfinite(list(entries.values())).all():
            raise ValueError(
                f"{name} has {len(entries)} numbers, not all finite, or not one for each of {shape} blocks and heads"
            )
        values[name] = np.array([entries[place] for place in sorted(entries)]).reshape(shape)
    return values


def _figure(title: str, file: str, encoders: list[str], series: Mapping[str, Float[np.ndarray, "L H"]], median: bool) -> Figure:
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
