"""How many random crops of each training image are worth storing: accuracy against their number."""

import math

from pipelines.report.collect import Inputs
from pipelines.report.content import Section, Table, Text
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.measured import Probe, in_order
from pipelines.report.remarks import SENTENCE, score_name
from pipelines.report.studies import Study, by_encoder, trained_alike
from pipelines.report.tables import each, heads, spreads, texts, title
from pipelines.report.tables import table as declared

STUDY = "views"

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
    return Section("views", "Stored crops against fresh ones", (about, *([contrasts] if contrasts else []), table(study)))


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
