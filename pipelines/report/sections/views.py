"""How many random crops of each training image are worth storing: accuracy against their number."""

import math

from pipelines.report.collect import Inputs
from pipelines.report.content import Section, Table, Text, section_of
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.measured import Probe, in_order
from pipelines.report.remarks import SENTENCE, score_name
from pipelines.report.sections.studies import Study, by_encoder, trained_alike
from pipelines.report.tables import each, heads, spreads, texts, title
from pipelines.report.tables import table as declared

STUDY = "views"
ABOUT = (
    "Of each training image an epoch shows one of the stored random crops, or a fresh one as in the paper. All heads are "
    "measured on the evaluation crop."
)
Crops = int | str  # or "fresh"


def section(inputs: Inputs) -> Section | None:
    """None without the study `views`."""
    study = {key: probe for key, probe in inputs.studies.get(STUDY, {}).items() if probe.crops is not None}
    if not study:
        return None
    contrasts = [
        ((encoder, title(head), _format_crops(n)), probe, by_number[0])
        for (encoder, head), by_number in _series(study).items()
        for n, probe in by_number.items()
        if n != 0 and 0 in by_number
    ]
    gained = contrasts_table("views-gains", "What crops gain over none", ("Encoder", "Head", "Crops"), contrasts)
    return section_of("views", "Stored crops against fresh ones", Text(ABOUT), gained, table(study))


def table(study: Study) -> Table:
    """A row for each encoder and head, a column for each number of crops."""
    what = f"{SENTENCE[score_name(study.values())]} on the test images, %, mean ± standard deviation over seeds."
    return declared(
        "views",
        "Accuracy against the number of stored crops",
        f"{what} {trained_alike(study.values())}",
        _series(study).items(),
        texts("encoder", "Encoder", lambda row: row[0][0]),
        heads(lambda row: row[0][1]),
        each(
            sorted({probe.crops for probe in study.values()}, key=_sort_key),
            lambda n: spreads(f"crops_{n}", _format_crops(n), lambda row: row[1][n].score if n in row[1] else None),
            apart=True,
        ),
    )


def _series(study: Study) -> dict[tuple[str, str], dict[Crops, Probe]]:
    """By encoder and aggregator in the order of the page, then by number of crops, fresh ones last."""
    return {
        (encoder, head): {p.crops: p for p in sorted(probes, key=lambda p: _sort_key(p.crops)) if p.aggregator == head}
        for encoder, probes in by_encoder(study).items()
        for head in in_order(probe.aggregator for probe in probes)
    }


def _sort_key(crops: Crops) -> float:
    return crops if isinstance(crops, int) else math.inf


def _format_crops(crops: Crops) -> str:
    """`no crops`, `1 crop`, `16 crops`, `fresh crops`."""
    return f"{crops or 'no'} crop{'s' * (crops != 1)}"
