"""Studies: heads that were trained alike, with a column for each of their options (Table 5 in v2, Table 3 in v1)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Section, Table
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.measured import FIRST_HEADS, Probe, trained_first
from pipelines.report.published.printed import printed_table
from pipelines.report.remarks import SENTENCE, TITLES, score_name
from pipelines.report.tables import (
    NOTHING,
    DeclaredColumn,
    cells,
    each,
    file_names,
    heads,
    pairs,
    selects,
    spreads,
    table,
    texts,
    title,
)

Study = Mapping[tuple[str, str], Probe]
Columns = Sequence[DeclaredColumn]
COSTS = (
    "Parameters: of the aggregator. FLOPs: of one image in a forward pass through aggregator and classifier, a "
    "multiplication and an addition counting as two; of matrix products alone (no softmax, norm or average), as they are "
    "computed here."
)
NOT_ALIKE = "These heads were not all trained alike: epochs, batch size, learning rate or seeds differ, so rows do not compare."
TRAINED_BY = ("epochs", "optimiser", "batch_size", "order", "base_lr")  # what a study's heads may have in common
RATE = "without a base_lr, each has the rate that was selected for it."
UNITS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
SHOWN_ELSEWHERE = ("poolings", "selection", "views")  # by `cost` and by sections of their names
PRINTED = {"variants": ("table-5", "table-3-v1")}  # tables of the paper beside a study


def section(inputs: Inputs) -> Section | None:
    """Tables of each study; None without any."""
    shown = {name: study for name, study in inputs.studies.items() if name not in SHOWN_ELSEWHERE}
    files = file_names("study", list(shown))
    blocks: list[Block | None] = []
    for name, study in shown.items():
        blocks += [_gain_table(files[name], name, study), _option_table(files[name], name, study)]
        blocks += map(printed_table, PRINTED.get(name, ()))
    return Section("studies", "Studies of heads", tuple(filter(None, blocks))) if blocks else None


def _gain_table(file: str, name: str, study: Study) -> Table | None:
    """Heads of each encoder against AbMILP with the fewest options, or without it the cheapest one; None with one head."""
    contrasts = []
    for encoder, probes in by_encoder(study).items():
        one = min(probes, key=lambda probe: (probe.aggregator != "abmilp", probe.aggregator == "abmilp" and len(probe.options)))
        contrasts += [((encoder, title(p.head), title(one.head)), p, one) for p in probes if p is not one]
    return contrasts_table(f"{file}-gains", f"{name}: what heads gain", ("Encoder", "Head", "Over"), contrasts)


def _option_table(file: str, name: str, study: Study) -> Table:
    options = dict.fromkeys(option for probe in study.values() for option in probe.options)
    several = len({probe.aggregator for probe in study.values()}) > 1
    columns = [
        *([texts("aggregator", "Aggregator", lambda probe: probe.aggregator)] if several else []),
        *each(options, lambda o: texts(f"option_{o}", o.replace("_", " "), lambda probe: probe.options.get(o), _format_option)),
    ]
    note = f"Options: a dash is the default. {COSTS}" if options else COSTS
    return study_table(file, f"{name}: heads and their options", study, columns, note)


def _format_option(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def by_encoder(study: Study) -> dict[str, list[Probe]]:
    """Probes of each encoder: trained encoders, then random ones; heads from the cheapest on."""
    return {
        encoder: sorted((p for (name, _), p in study.items() if name == encoder), key=_cost_key)
        for encoder in trained_first(study)
    }


def study_table(name: str, heading: str, study: Study, columns: Columns, note: str) -> Table:
    """A row for each head, from the cheapest on; the highest mean of an encoder is marked, ties as shown too.

    Args:
        columns: behind the accuracy.
    """
    measure = score_name(study.values())
    what = (
        f"{SENTENCE[measure]} on the test images, mean ± standard deviation over seeds; bold: the highest mean of an encoder."
    )
    return table(
        name,
        heading,
        " ".join(filter(None, (what, trained_alike(study.values()), note))),
        [probe for probes in by_encoder(study).values() for probe in probes],
        texts("encoder", "Encoder", lambda probe: probe.encoder, filters=True),
        heads(filters=True),
        spreads(measure, f"{TITLES[measure]}, %", lambda probe: probe.score, best="column"),
        columns,
        counts("parameters", "Parameters", lambda probe: probe.cost.get("parameters"), apart=True),
        counts("parameters_classifier", "Of the classifier", lambda probe: probe.cost.get("parameters_classifier")),
        counts("flops_per_image", "FLOPs per image", lambda probe: probe.cost.get("flops_per_image")),
        muted=lambda probe: probe.pretraining.is_untrained,
        within=lambda probe: probe.encoder,
    )


def counts(name: str, heading: str, value: Callable[[Probe], int | None], **about: Any) -> DeclaredColumn:
    """A column of operations, parameters or bytes."""
    return cells(name, heading, lambda probe: count(value(probe)), **about)


def selects_untrained(probe: Probe) -> bool:
    """Whether a head chooses patches, and only its classifier was trained: no parameters, and uneven weights."""
    return probe.cost.get("parameters") == 0 and selects(probe)


def count(value: int | None) -> Cell:
    """Operations or parameters, to three digits: `193`, `43.0 k`, `1.65 M`."""
    if value is None:
        return NOTHING
    for unit, letter in UNITS:
        if value >= 0.9995 * unit:
            share = value / unit
            return Cell(f"{share:.{2 if share < 9.995 else 1 if share < 99.95 else 0}f} {letter}", value)
    return Cell(str(value), value)


def trained_alike(probes: Iterable[Probe]) -> str:
    """How the heads of a study were trained; or that they were not all trained alike."""
    ways = {probe.trained_as: probe for probe in probes}
    if len(ways) != 1:
        return NOT_ALIKE if ways else ""
    (probe,) = ways.values()
    recipe = pairs({name: probe.protocol[name] for name in TRAINED_BY if name in probe.protocol})
    return recipe and f"All heads were trained alike: {recipe}, seeds {len(probe.seeds)}; {RATE}"


def _cost_key(probe: Probe) -> tuple[float, float, int, str]:
    place = FIRST_HEADS.index(probe.head) if probe.head in FIRST_HEADS else len(FIRST_HEADS)
    return probe.cost.get("flops_per_image") or 0, probe.cost.get("parameters") or 0, place, probe.head
