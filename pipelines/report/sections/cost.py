"""Accuracy against cost (Table 7 in v2 of the paper): which heads no other beats at their cost."""

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import FuncFormatter, LogLocator

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Figures, Kind, Section, Table
from pipelines.report.drawing import STYLE, colour, drawn, limits, looks
from pipelines.report.measured import Probe
from pipelines.report.published.printed import printed_table
from pipelines.report.remarks import AXES
from pipelines.report.sections.studies import COSTS, Study, by_encoder, count, counts, study_table
from pipelines.report.tables import NOTHING, DeclaredColumn, cells, each, texts

STUDY = "poolings"
ALT_FRONTS = (
    "Accuracy on the test images against FLOPs per image: a stepped line for each encoder; the table of costs has the numbers."
)
FRONT = "On the front: no other head of the encoder reaches more for as many operations or fewer."


def section(inputs: Inputs) -> Section | None:
    """The study `poolings`; without it, all heads whose cost is known; None without such heads."""
    probes = inputs.studies.get(STUDY) or inputs.probes
    known = {key: probe for key, probe in probes.items() if probe.cost.get("flops_per_image")}
    if not known:
        return None
    return Section("cost", "Accuracy against cost", (fronts(known), cost_table(known), printed_table("table-7")))


def fronts(study: Study) -> Figures:
    """One plot of all encoders: each line goes through the heads that no other beats at the same cost or less."""
    probes_of = by_encoder(study)
    by_name = looks(list(probes_of), [encoder for encoder, probes in probes_of.items() if probes[0].pretraining.is_untrained])
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(5.4, 3.2))
        axes = plot.subplots()
        for encoder, probes in probes_of.items():
            best, look = front(probes), by_name[encoder]
            dash: Any = look.dash
            places, reached = [_flops(probe) for probe in best], [probe.score.mean for probe in best]
            axes.step(places, reached, where="post", color=colour(look), linestyle=dash, linewidth=1.2)
            axes.plot(places, reached, color=colour(look), marker=look.marker, linestyle="none")
        _axes(axes, study)
    caption = "A mark: a head that no other head of that encoder beats at the same cost or less; between marks nothing does."
    heading = "The most that a head reaches for its operations"
    figure = drawn(plot, "cost-fronts", heading, caption, ALT_FRONTS, list(by_name.values()))
    return Figures((figure,), tuple(by_name.values()))


def cost_table(study: Study) -> Table:
    """Accuracy and costs; what was not recorded of any head has no column."""
    on_front = {id(probe) for probes in by_encoder(study).values() for probe in front(probes)}
    known = [entry for entry in RECORDED if any(entry[0].cell(probe) != NOTHING for probe in study.values())]
    is_on_front = texts("on_front", "On the front", lambda probe: "yes" if id(probe) in on_front else "no")
    columns = each((*(column for column, _ in known), is_on_front), lambda column: column, apart=True)
    note = " ".join([COSTS, *(about for _, about in known if about), FRONT, "A dash: it was not recorded."])
    return study_table("cost", "What heads cost and reach", study, columns, note)


def _axes(axes: Axes, study: Study) -> None:
    """The same for all plots."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _format_count(value)))
    axes.minorticks_off()
    flops_of_all = [_flops(p) for p in study.values()]
    axes.set_xlim(min(flops_of_all) / 1.6, max(flops_of_all) * 1.6)
    axes.set_ylim(*limits((probe.score for probe in study.values()), 0.08))
    axes.set_xlabel("FLOPs of the head per image, logarithmic")
    axes.set_ylabel(AXES[next(iter(study.values())).measure])


def _format_count(value: float) -> str:
    """`30 k`."""
    return count(round(value)).text.replace(".00", "").replace(".0", "")


def _flops(probe: Probe) -> int:
    return probe.cost["flops_per_image"] or 0


def _share(probe: Probe) -> Cell:
    """Percent of the operations of encoder and head."""
    of_encoder, of_head = probe.cost.get("flops_of_encoder"), probe.cost["flops_per_image"]
    if not of_encoder or of_head is None:
        return NOTHING
    share = 100 * of_head / (of_encoder + of_head)
    return Cell(f"{share:.2g}", share)


def _timing_column(name: str, heading: str, form: str, kind: Kind = "number") -> DeclaredColumn:
    """What `timing.json` has by this name."""

    def cell(probe: Probe) -> Cell:
        return Cell(form.format(probe.timing[name]), probe.timing[name]) if probe.timing else NOTHING

    return cells("n_images_timed" if name == "n_images" else name, heading, cell, kind)


# What may have been recorded of heads: its column, and what it is.
RECORDED = (
    (
        cells("share_of_inference", "Of inference, %", _share),
        "Of inference: the head's part of the operations of encoder and head together.",
    ),
    (
        counts("memory_per_image", "Memory per image", lambda probe: probe.cost.get("memory_per_image")),
        "Memory: bytes that the operation of the head which needs most reads and writes, of one image in float32, without "
        "weights.",
    ),
    (
        counts("bytes_per_image", "Bytes read per image", lambda probe: probe.cost.get("bytes_per_image")),
        "Bytes: of the arrays that a head reads, one view of an image, as they are stored.",
    ),
    (
        _timing_column("ms_per_image", "ms per image", "{:.3g}"),
        "Milliseconds: measured where heads were trained, the fastest of several forward passes over as many images in memory; "
        "another run, or machine, gives another number.",
    ),
    (_timing_column("device", "Device", "{}", "text"), ""),
    (_timing_column("threads", "Threads", "{}"), ""),
    (_timing_column("n_images", "Images at once", "{:,}"), ""),
)


def front(probes: list[Probe]) -> list[Probe]:
    """The heads that no other head beats at the same cost or less, of heads from the cheapest on."""
    front: list[Probe] = []
    for probe in probes:
        if not front or probe.score.mean > front[-1].score.mean:
            if front and _flops(front[-1]) == _flops(probe):
                front.pop()
            front.append(probe)
    return front
