"""Training curves: loss and top-1 by epoch."""

from pipelines.report.collect import Inputs
from pipelines.report.content import Figure, Figures, Section, Text
from pipelines.report.drawing import Panel, lines, looks
from pipelines.report.tables import file_names, title

AXES = (("loss", "training loss, nats"), ("top1", "top-1, %"))
ABOUT = (
    "Mean over seeds by epoch, on the same axes for all encoders. Nothing is selected by these curves: the last epoch counts."
)


def section(inputs: Inputs) -> Section:
    """A plot for each encoder, a line for each head, on the same axes throughout."""
    names = file_names("curves", inputs.encoders)
    figures = tuple(_figure(inputs, encoder, names[encoder]) for encoder in inputs.encoders)
    legend = tuple(looks(inputs.heads).values()) if any(figure.svg for figure in figures) else ()
    return Section("curves", "Training curves", (Text(ABOUT), Figures(figures, legend)))


def _figure(inputs: Inputs, encoder: str, name: str) -> Figure:
    curves = {probe.head: probe.curve for probe in inputs.probes_of(encoder) if probe.curve}
    if not curves:
        return Figure(name, encoder, "Not computed: there are no curves of this encoder.", "", "")
    panels = []
    for measure, label in AXES:
        values = [value for probe in inputs.probes.values() if probe.curve for value in probe.curve[measure]]
        margin = 0.05 * (max(values) - min(values)) or 1.0
        series = {head: (curve.epochs, curve[measure], ()) for head, curve in curves.items()}
        panels.append(Panel(series, "epoch", label, (min(values) - margin, max(values) + margin)))
    ended = (
        f"{title(head)}: loss {curve.loss[-1]:.2f}, top-1 {curve.top1[-1]:.1f} % after {curve.epochs[-1]} epochs."
        for head, curve in curves.items()
    )
    alt = f"Training curves of {encoder}. {' '.join(ended)}"
    return lines(name, encoder, "", alt, panels, looks(inputs.heads), height=2.2)
