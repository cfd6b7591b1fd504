"""The larger form of Table 1: encoder by head on several sets of images."""

from pipelines.report.claims import table_by_dataset
from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Column, Row, Section, Table
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.dashes import reasons
from pipelines.report.estimate import Probes, difference
from pipelines.report.gains import gains
from pipelines.report.measured import Measure, Probe, by_accuracy, trained_first, untrained
from pipelines.report.tables import (
    NOTHING,
    change,
    file_names,
    interval_beside,
    named,
    number,
    title,
    with_best,
    with_interval,
    with_known_intervals,
)

MEASURES = {"top1": "top-1", "map": "mAP"}
NOTE = (
    "Top-1 accuracy, or mean average precision where images have several labels, on the test images of each set, %, mean ± "
    "standard deviation over seeds."
)
SPREAD = (
    "The ± of a difference is the root of the summed variances of its two heads over seeds; 95 %: over test images and seeds."
)


def section(inputs: Inputs) -> Section | None:
    """A table over all data sets, the other heads of each, and the claims on each; None without other data sets."""
    if not inputs.datasets:
        return None
    shared = _shared(inputs)
    others = [by_head(name, probes) for name, probes in inputs.datasets.items() if {head for _, head in probes} - set(shared)]
    shares = (gained,) if (gained := error_shares(inputs)) else ()
    moved = (weights,) if (weights := transferred(inputs)) else ()
    claimed = (judged,) if (judged := table_by_dataset(inputs.datasets)) else ()
    return Section("datasets", "Across data sets", (*shares, table(inputs), *others, *moved, *claimed))


def error_shares(inputs: Inputs) -> Table | None:
    """The share of the errors of [cls] that AbMILP removes, by encoder and data set; None without any."""
    shares = {name: {e: g for (e, over), g in gains(of).items() if over == "cls"} for name, of in inputs.datasets.items()}
    shares = {name: by_encoder for name, by_encoder in shares.items() if any(gain.share for gain in by_encoder.values())}
    if not shares:
        return None
    names, random = list(shares), {encoder for probes in inputs.datasets.values() for encoder in untrained(probes)}
    encoders = sorted({e for by_encoder in shares.values() for e in by_encoder}, key=lambda name: (name in random, name))
    rows = []
    for encoder in encoders:
        estimates = [gain.share if (gain := shares[name].get(encoder)) else None for name in names]
        cells = map(change, estimates)
        rows.append(Row((named(encoder, encoder in random), *cells), muted=encoder in random))
    columns = (Column("encoder", "Encoder", "text"), *(Column(f"share_on_{name}", name, "spread") for name in names))
    note = "Share of the errors of [cls] that AbMILP removes, %, mean ± standard deviation over seeds; below 0 it makes more."
    return Table("error-shares", "Errors of [cls] that AbMILP removes", note, columns, tuple(rows))


def transferred(inputs: Inputs) -> Table | None:
    """Aggregators of one data set on another, against the head trained there and its plain average; None without any."""
    learned_on = {probe.features["training"]: name for name, probes in inputs.datasets.items() for probe in probes.values()}
    contrasts = []
    for name, probes in inputs.datasets.items():
        for (encoder, head), probe in probes.items():
            if probe.transferred is None:
                continue
            source = learned_on.get(probe.transferred, f"feature set {probe.transferred}")
            others = [other for other in (probe.aggregator, "average") if (encoder, other) in probes]
            contrasts += [((name, encoder, head, source, title(o)), probe, probes[encoder, o]) for o in others]
    labels = ("Data set", "Encoder", "Head", "Weights of", "Over")
    note = "Weights that were learned on the images of one data set and are used on those of another, with a new classifier."
    return contrasts_table("transferred", "Aggregators of other data sets", labels, contrasts, note)


def _shared(inputs: Inputs) -> list[str]:
    """Heads of at least two data sets; all of them where there is one set, or none are shared."""
    heads = [{head for _, head in probes} for probes in inputs.datasets.values()]
    ordered = by_accuracy(probe for probes in inputs.datasets.values() for probe in probes.values())
    return [head for head in ordered if sum(head in of_set for of_set in heads) > 1] or ordered


def table(inputs: Inputs) -> Table:
    """A row for each encoder on each data set, a column for each head that several sets have."""
    heads = _shared(inputs)
    columns = (
        Column("dataset", "Data set", "text", filters=True),
        Column("encoder", "Encoder", "text", filters=True),
        Column("measure", "Measure", "text"),
        *(Column(head, title(head), "spread") for head in heads),
        *interval_beside(Column("abmilp_minus_cls", "AbMILP − [cls]", "spread", apart=True)),
        Column("n_training", "Training images", apart=True),
        Column("n_test", "Test images"),
    )
    rows = tuple(
        _row(name, encoder, probes, heads)
        for name, probes in inputs.datasets.items()
        for encoder in trained_first(probes)
        if any((encoder, head) in probes for head in heads)
    )
    note = f"{NOTE} Bold: the highest mean of a row. {SPREAD}"
    for name, probes in inputs.datasets.items():
        shown = [encoder for encoder in trained_first(probes) if any((encoder, head) in probes for head in heads)]
        if dashes := reasons(probes, shown, heads):
            note += f" A dash on {name}: {dashes}."
    return with_known_intervals(Table("datasets", "Encoder by head by data set", note, columns, rows))


def by_head(name: str, probes: Probes) -> Table:
    """All heads of one data set: a row for each head, a column for each encoder."""
    encoders = trained_first(probes)
    heads, rows = by_accuracy(probes.values()), []
    of_encoders = [with_best(_score(probes.get((encoder, head))) for head in heads) for encoder in encoders]
    for head, *cells in zip(heads, *of_encoders, strict=True):
        of_head = [probe for encoder in encoders if (probe := probes.get((encoder, head)))]
        parameters = [n for probe in of_head if (n := probe.cost.get("parameters")) is not None]
        epochs = ", ".join(sorted({str(probe.recipe["epochs"]) for probe in of_head if probe.recipe.get("epochs")}))
        trained_for = Cell(epochs, epochs) if epochs else NOTHING
        rows.append(Row((Cell(title(head), head), *cells, number(max(parameters, default=None), 0), trained_for)))
    columns = (
        Column("head", "Head", "text"),
        *(Column(encoder, encoder, "spread") for encoder in encoders),
        Column("parameters", "Parameters", apart=True),
        Column("epochs", "Epochs", "text"),
    )
    (file,) = file_names("heads-of", [name]).values()
    note = f"{NOTE} Bold: the highest mean of an encoder."
    if dashes := reasons(probes, encoders, heads):
        note += f" A dash: {dashes}."
    return Table(file, f"All heads on {name}", note, columns, tuple(rows), folded=True)


def _row(name: str, encoder: str, probes: Probes, heads: list[str]) -> Row:
    by_head = {head: probe for head in heads if (probe := probes.get((encoder, head))) is not None}
    any_probe = next(iter(by_head.values()))
    measure = MEASURES[any_probe.measure]
    return Row(
        (
            Cell(name, name),
            named(encoder, any_probe.pretraining.is_untrained),
            Cell(measure, measure),
            *with_best(_score(by_head.get(head)) for head in heads),
            *with_interval(difference(by_head.get("abmilp"), by_head.get("cls"))),
            number(any_probe.n_training, 0),
            number(any_probe.n_test, 0),
        ),
        muted=any_probe.pretraining.is_untrained,
    )


def _score(probe: Probe | None) -> Measure | None:
    return None if probe is None else probe.score
