"""How many random crops of each training image are worth storing: accuracy against their number."""

import math

import matplotlib
from matplotlib.figure import Figure as Plot

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Column, Figure, Figures, Look, Row, Section, Table, Text
from pipelines.report.drawing import INK, STYLE, colour, drawn, looks
from pipelines.report.measured import Measure, Probe, in_order
from pipelines.report.scores import AXES, SENTENCE, score_name
from pipelines.report.studies import Study, by_encoder, trained_alike
from pipelines.report.tables import NOTHING, difference, file_names, plus_minus, signed, spread, title
from probe.notes import FRESH

STUDY = "views"
CLOSE = 0.5  # points below fresh crops that are called close

Series = dict[str, dict[int | str, Probe]]  # by aggregator, then by number of crops


def section(inputs: Inputs) -> Section | None:
    """None without the study `views`."""
    study = {key: probe for key, probe in inputs.studies.get(STUDY, {}).items() if probe.crops is not None}
    if not study:
        return None
    findings = Text(
        " ".join(finding(encoder, probes_of_encoder) for encoder, probes_of_encoder in by_encoder(study).items()),
        kind="finding",
    )
    about = Text(
        "The paper trains on a new random crop of each image in every epoch. A feature set holds the evaluation crop and as "
        "many random ones as were extracted (--views counts both); an epoch shows one of these. All heads are measured on the "
        "evaluation crop."
    )
    return Section("views", "Stored crops against fresh ones", (about, findings, figures(study), table(study)))


def table(study: Study) -> Table:
    """A row for each encoder and head, a column for each number of crops."""
    numbers = _numbers(study)
    columns = (
        Column("encoder", "Encoder", "text"),
        Column("head", "Head", "text"),
        *(Column(f"crops_{n}", _words(n), "spread", apart=i == 0) for i, n in enumerate(numbers)),
    )
    rows = []
    for encoder, probes in by_encoder(study).items():
        for head, by_number in _series(probes).items():
            cells = [spread(by_number[n].score) if n in by_number else NOTHING for n in numbers]
            rows.append(Row((Cell(encoder, encoder), Cell(title(head), head), *cells)))
    what = f"{SENTENCE[score_name(study.values())]} on the test images, %, mean ± standard deviation over seeds."
    note = f"{what} {trained_alike(study.values())}"
    return Table("views", "Accuracy against the number of stored crops", note, columns, tuple(rows))


def figures(study: Study) -> Figures:
    """A plot for each encoder, a line for each head, on the same axes."""
    encoders, numbers = by_encoder(study), _numbers(study)
    by_head = looks(in_order({probe.aggregator for probe in study.values()}))
    files = file_names("views", list(encoders))
    low = min(probe.score.mean - probe.score.std for probe in study.values())
    high = max(probe.score.mean + probe.score.std for probe in study.values())
    margin = 0.05 * (high - low) or 1.0
    limits = (low - margin, high + margin)
    plots = [
        _figure(files[name], name, _series(probes_of_encoder), numbers, by_head, limits)
        for name, probes_of_encoder in encoders.items()
    ]
    return Figures(tuple(plots), tuple(by_head.values()))


def _figure(
    name: str,
    encoder: str,
    series: Series,
    numbers: list[int | str],
    by_head: dict[str, Look],
    limits: tuple[float, float],
) -> Figure:
    measure = score_name(probe for by_number in series.values() for probe in by_number.values())
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(4.6, 2.6), layout="constrained")
        axes = plot.subplots()
        for head, by_number in series.items():
            look = by_head[head]
            places = [place for place, n in enumerate(numbers) if n in by_number]
            reached = [by_number[numbers[place]].score for place in places]
            means, deviations = [measure.mean for measure in reached], [measure.std for measure in reached]
            axes.errorbar(places, means, deviations, color=colour(look), linestyle=look.dash, marker=look.marker)
        axes.set_xticks(range(len(numbers)), ["none" if n == 0 else str(n) for n in numbers])
        axes.set_ylim(*limits)
        axes.set_xlabel("random crops of each training image")
        axes.set_ylabel(AXES[measure])
        axes.grid(axis="y", color=INK, alpha=0.13, linewidth=0.6)
    caption = "none: the evaluation crop alone. fresh: a new crop in every epoch. Bars: ± one standard deviation over seeds."
    points = "; ".join(
        f"{title(head)}: {', '.join(f'{plus_minus(probe.score)} % with {_words(n)}' for n, probe in by_number.items())}"
        for head, by_number in series.items()
    )
    alt = f"{SENTENCE[measure]} of {encoder} against the number of stored crops. {points}."
    return drawn(plot, name, encoder, caption, alt, [by_head[head] for head in series])


def enough(by_number: dict[int | str, Probe]) -> int | None:
    """The smallest number of stored crops from which on all are within `CLOSE` points of fresh ones; None if no number is."""
    least = None
    for n in sorted((n for n in by_number if isinstance(n, int)), reverse=True):
        if by_number[n].score.mean < by_number[FRESH].score.mean - CLOSE:
            break
        least = n
    return least


def finding(called: str, probes: list[Probe]) -> str:
    """A sentence on what fresh crops give the heads of one encoder, and how many stored ones come close to them."""
    parts = []
    for head, by_number in _series(probes).items():
        if FRESH not in by_number or 0 not in by_number:
            continue
        gained = by_number[FRESH].score.mean - by_number[0].score.mean
        if gained <= 0:
            parts.append(f"{title(head)} does best without crops, and loses {-gained:.1f} points with fresh ones")
            continue
        least = enough(by_number)
        how = "no stored number comes" if least is None else f"{_words(least)} come{'s' * (least in (0, 1))}"
        parts.append(f"{title(head)} gains {signed(gained)} points from fresh crops, and {how} within {CLOSE} points of them")
    if not parts:
        return f"On {called}, fresh crops or the evaluation crop alone were not measured, so there is nothing to compare."
    return f"On {called}, {'; '.join(parts)}."


def best_stored(probes: list[Probe]) -> dict[str, tuple[int, Measure]]:
    """By aggregator, the number of stored crops that reaches most, and its points over none; 0 if none is clearly better.

    Clearly: by more than twice the spread of the difference over seeds.
    """
    by_head = {}
    for head, by_number in _series(probes).items():
        stored = {n: difference(probe, by_number.get(0)) for n, probe in by_number.items() if isinstance(n, int)}
        better = {n: gained for n, gained in stored.items() if gained is not None and gained.mean > 2 * gained.std}
        most = max(better, key=lambda n: better[n].mean, default=0)
        by_head[head] = most, better.get(most, Measure(0.0, 0.0, ()))
    return by_head


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
