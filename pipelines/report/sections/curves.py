"""Training curves: loss and top-1 by epoch."""

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import MaxNLocator

from pipelines.report.collect import Inputs
from pipelines.report.content import Figure, Figures, Look, Section, Text
from pipelines.report.drawing import STYLE, colour, drawn, looks
from pipelines.report.measured import Probe
from pipelines.report.tables import file_names, title

AXES = (("loss", "training loss, nats"), ("top1", "top-1, %"))


def section(inputs: Inputs) -> Section:
    """A plot for each encoder, a line for each head, on the same axes throughout."""
    text = (
        "Mean over seeds by epoch. The axes are the same for all encoders. Nothing is selected by these curves: the last "
        "epoch counts."
    )
    names = file_names("curves", inputs.encoders)
    figures = tuple(_figure(inputs, encoder, names[encoder]) for encoder in inputs.encoders)
    legend = tuple(looks(inputs.heads).values()) if any(figure.svg for figure in figures) else ()
    return Section("curves", "Training curves", (Text(text), Figures(figures, legend)))


def _figure(inputs: Inputs, encoder: str, name: str) -> Figure:
    probes = [probe for probe in inputs.probes_of(encoder) if probe.curve]
    if not probes:
        return Figure(name, encoder, "Not computed: there are no curves of this encoder.", "", "")
    by_head = looks(inputs.heads)
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(4.6, 2.2))
        for axes, (measure, label) in zip(plot.subplots(1, 2), AXES, strict=True):
            for probe in probes:
                _line(axes, by_head[probe.head], probe, measure)
            axes.set_ylim(*_limits(inputs, measure))
            axes.set_xlabel("epoch")
            axes.set_ylabel(label)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    alt = f"Training curves of {encoder}. " + " ".join(_ended(probe) for probe in probes)
    return drawn(plot, name, encoder, "", alt, [by_head[probe.head] for probe in probes])


def _limits(inputs: Inputs, measure: str) -> tuple[float, float]:
    """Of the axis, over all encoders and heads."""
    values = [value for probe in inputs.probes.values() if probe.curve for value in getattr(probe.curve, measure)]
    margin = 0.05 * (max(values) - min(values)) or 1.0
    return min(values) - margin, max(values) + margin


def _line(axes: Axes, look: Look, probe: Probe, measure: str) -> None:
    assert probe.curve is not None
    values = getattr(probe.curve, measure)
    dash: Any = look.dash
    every = max(1, len(values) // 6)
    axes.plot(
        probe.curve.epochs, values, color=colour(look), linestyle=dash, marker=look.marker, markevery=every, linewidth=1.3
    )


def _ended(probe: Probe) -> str:
    curve = probe.curve
    assert curve is not None
    return f"{title(probe.head)}: loss {curve.loss[-1]:.2f}, top-1 {curve.top1[-1]:.1f} % after {curve.epochs[-1]} epochs."
