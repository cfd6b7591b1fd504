"""The larger form of Table 1: encoder by head on several sets of images."""

from collections.abc import Mapping

from pipelines.report.collect import Inputs, Measure, Probe, in_order, is_random
from pipelines.report.content import Cell, Column, Row, Section, Table, Text
from pipelines.report.tables import change, difference, listed, named, number, spread, title

Probes = Mapping[tuple[str, str], Probe]
MEASURES = {"top1": "top-1", "map": "mAP"}


def section(inputs: Inputs) -> Section | None:
    """A table over all data sets, and where AbMILP is ahead of [cls]; None if there are no other data sets."""
    if not inputs.datasets:
        return None
    return Section("datasets", "Across data sets", (Text(_ahead(inputs), kind="finding"), table(inputs)))


def table(inputs: Inputs) -> Table:
    """A row for each encoder on each data set, a column for each head."""
    heads = in_order(head for probes in inputs.datasets.values() for _, head in probes)
    columns = (
        Column("dataset", "Data set", "text"),
        Column("encoder", "Encoder", "text"),
        Column("measure", "Measure", "text"),
        *(Column(head, title(head), "spread") for head in heads),
        Column("abmilp_minus_cls", "AbMILP − [cls]", "spread", apart=True),
        Column("n_training", "Training images", apart=True),
        Column("n_test", "Test images"),
    )
    rows = tuple(
        _row(name, encoder, probes, heads) for name, probes in inputs.datasets.items() for encoder in _encoders(probes)
    )
    note = (
        "Top-1 accuracy, or mean average precision where images have several labels, on the test images of each set, %, mean ± "
        "standard deviation over seeds. Bold: the highest mean of a row. The ± of a difference is the root of the summed "
        "variances of its two heads over seeds."
    )
    return Table("datasets", "Encoder by head by data set", note, columns, rows)


def _row(name: str, encoder: str, probes: Probes, heads: list[str]) -> Row:
    found = {head: probe for head in heads if (probe := probes.get((encoder, head))) is not None}
    any_of = next(iter(found.values()))
    best = max(round(_measure(probe).mean, 1) for probe in found.values())
    cells = [
        spread(_measure(found[head]), best=round(_measure(found[head]).mean, 1) == best) if head in found else spread(None)
        for head in heads
    ]
    measure = MEASURES[any_of.measure]
    return Row(
        (
            Cell(name, name),
            named(encoder),
            Cell(measure, measure),
            *cells,
            change(difference(found.get("abmilp"), found.get("cls"))),
            number(any_of.n_training, 0),
            number(any_of.n_test, 0),
        ),
        muted=is_random(encoder),
    )


def _ahead(inputs: Inputs) -> str:
    """On which sets AbMILP is ahead of [cls] by more than twice the spread, for each encoder that was trained."""
    told = []
    for encoder in dict.fromkeys(e for probes in inputs.datasets.values() for e in _encoders(probes) if not is_random(e)):
        gains = {
            name: gain
            for name, probes in inputs.datasets.items()
            if (gain := difference(probes.get((encoder, "abmilp")), probes.get((encoder, "cls")))) is not None
        }
        if gains:
            ahead = [name for name, gain in gains.items() if len(gain.values) > 1 and gain.mean > 2 * gain.std]
            where = f": {listed(ahead)}" if ahead else ""
            told.append(f"on {encoder}, on {len(ahead)} of {len(gains)} data set{'s' * (len(gains) > 1)}{where}")
    if not told:
        return "AbMILP cannot be compared with [cls]: no trained encoder has probes of both on one data set."
    return f"AbMILP is ahead of [cls] by more than twice the spread over seeds {'; '.join(told)}."


def _encoders(probes: Probes) -> list[str]:
    """Trained ones first, as everywhere."""
    return sorted({encoder for encoder, _ in probes}, key=lambda name: (is_random(name), name))


def _measure(probe: Probe) -> Measure:
    return probe.measures[probe.measure]
