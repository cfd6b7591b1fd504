"""How many random crops of each training image are worth storing: accuracy against their number."""

import math

from matplotlib.axes import Axes

from pipelines.report.collect import Inputs
from pipelines.report.content import Figure, Figures, Look, Section, Table, Text
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.drawing import limits, lines, looks
from pipelines.report.measured import Probe, in_order
from pipelines.report.remarks import AXES, SENTENCE, score_name
from pipelines.report.studies import Study, by_encoder, trained_alike
from pipelines.report.tables import each, file_names, heads, spreads, texts, title
from pipelines.report.tables import table as declared

STUDY = "views"
ALT = "What heads reach on the test images by the number of stored crops, a line for each. The numbers are in the table below."

Series = dict[str, dict[int | str, Probe]]  # by aggregator, then by number of crops


def section(inputs: Inputs) -> Section | None:
    """None without the study `views`."""
    study = {key: probe for key, probe in inputs.studies.get(STUDY, {}).items() if probe.crops is not None}
    if not study:
        return None
    about = Text(
        "The paper trains on a new random crop of each image in every epoch. A feature set holds the evaluation crop and as "
        "many random ones as were extracted (--views counts both); an epoch shows one of these. All heads are measured on the "
        "evaluation crop."
    )
    contrasts = gained(study)
    return Section(
        "views", "Stored crops against fresh ones", (about, figures(study), *([contrasts] if contrasts else []), table(study))
    )


def table(study: Study) -> Table:
    """A row for each encoder and head, a column for each number of crops."""
    what = f"{SENTENCE[score_name(study.values())]} on the test images, %, mean ± standard deviation over seeds."
    note = f"{what} {trained_alike(study.values())}"
    return declared(
        "views",
        "Accuracy against the number of stored crops",
        note,
        [(e, head, by_number) for e, probes in by_encoder(study).items() for head, by_number in _series(probes).items()],
        texts("encoder", "Encoder", lambda row: row[0]),
        heads(lambda row: row[1]),
        each(
            _numbers(study),
            lambda n: spreads(f"crops_{n}", _words(n), lambda row: row[2][n].score if n in row[2] else None),
            apart=True,
        ),
    )


def figures(study: Study) -> Figures:
    """A plot for each encoder, a line for each head, on the same axes."""
    encoders, numbers = by_encoder(study), _numbers(study)
    by_head = looks(in_order({probe.aggregator for probe in study.values()}))
    files = file_names("views", list(encoders))
    shared = limits(probe.score for probe in study.values())
    plots = [
        _figure(files[name], name, _series(probes_of_encoder), numbers, by_head, shared)
        for name, probes_of_encoder in encoders.items()
    ]
    return Figures(tuple(plots), tuple(by_head.values()))


def _figure(
    name: str, encoder: str, series: Series, numbers: list[int | str], by_head: dict[str, Look], of_axis: tuple[float, float]
) -> Figure:
    measure = score_name(probe for by_number in series.values() for probe in by_number.values())
    by_place = {
        by_head[head]: {place: by_number[n].score for place, n in enumerate(numbers) if n in by_number}
        for head, by_number in series.items()
    }

    def arrange(axes: Axes) -> None:
        axes.set_xticks(range(len(numbers)), ["none" if n == 0 else str(n) for n in numbers])
        axes.set_ylim(*of_axis)

    caption = "none: the evaluation crop alone. fresh: a new crop in every epoch. Bars: ± one standard deviation over seeds."
    labels = ("random crops of each training image", AXES[measure])
    return lines(name, encoder, caption, ALT, by_place, labels, arrange)


def gained(study: Study) -> Table | None:
    """Each number of crops against none, by encoder and head; None where there is nothing to compare."""
    contrasts = [
        ((encoder, title(head), _words(n)), probe, by_number[0])
        for encoder, probes in by_encoder(study).items()
        for head, by_number in _series(probes).items()
        if 0 in by_number
        for n, probe in by_number.items()
        if n != 0
    ]
    return contrasts_table("views-gains", "What crops gain over none", ("Encoder", "Head", "Crops"), contrasts)


def _series(probes: list[Probe]) -> Series:
    """By aggregator in the order of the page, then by number of crops, fresh ones last."""
    series: Series = {}
    for head in in_order({probe.aggregator for probe in probes}):
        of_head = [probe for probe in probes if probe.aggregator == head]
        series[head] = {_crops(probe): probe for probe in sorted(of_head, key=lambda probe: _place(_crops(probe)))}
    return series


def _numbers(study: Study) -> list[int | str]:
    return sorted({_crops(probe) for probe in study.values()}, key=_place)


def _crops(probe: Probe) -> int | str:
    assert probe.crops is not None
    return probe.crops


def _place(crops: int | str) -> float:
    return crops if isinstance(crops, int) else math.inf


def _words(crops: int | str) -> str:
    """`no crops`, `1 crop`, `16 crops`, `fresh crops`."""
    return f"{crops or 'no'} crop{'s' * (crops != 1)}"
