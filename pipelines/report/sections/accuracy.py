"""Accuracy: encoder by head as in Table 1, and the published table beside it."""

from pipelines.report import gains
from pipelines.report.claim import lead_of
from pipelines.report.collect import Inputs, Measure, is_random
from pipelines.report.content import Cell, Column, Row, Section, Table
from pipelines.report.published import table_1
from pipelines.report.tables import NOTHING, ceiling, change, gain, named, number, signed, spread, title

ENCODER = Column("encoder", "Encoder", "text")


def section(inputs: Inputs) -> Section:
    """Top-1 accuracy, what AbMILP gains, top-5 accuracy, every number of every probe, and the published Table 1."""
    gained = gains_table(inputs)
    blocks = (top1(inputs), *((gained,) if gained else ()), top5(inputs), every_probe(inputs), published())
    return Section("accuracy", "Accuracy", blocks)


def gains_table(inputs: Inputs) -> Table | None:
    """What AbMILP gains on each encoder, and how much more on the masked one; None where nothing can be compared."""
    found = lead_of(inputs)
    return gains.table(inputs.probes, found.contrasts if found else ())


def top1(inputs: Inputs) -> Table:
    """A row for each encoder that was probed, a column for each head; the highest means of a row, as shown, are marked."""
    columns = (
        ENCODER,
        *(Column(head, title(head), "spread") for head in inputs.heads),
        Column("abmilp_minus_cls", "AbMILP − [cls]", "spread", apart=True),
        Column("entropy", "Entropy", "spread", apart=True),
        Column("ln_T", "ln T"),
    )
    rows = []
    for encoder in _probed(inputs):
        best = max(round(probe.measures["top1"].mean, 1) for probe in inputs.of(encoder))
        cells = [spread(m, best=m is not None and round(m.mean, 1) == best) for m in _over_heads(inputs, encoder, "top1")]
        abmilp, difference = inputs.probes.get((encoder, "abmilp")), gain(inputs, encoder)
        entropy = spread(abmilp.measures.get("entropy") if abmilp else None, 2)
        apart = (change(difference), entropy, number(ceiling(abmilp)))
        rows.append(Row((named(encoder), *cells, *apart), muted=is_random(encoder)))
    note = (
        "Top-1 accuracy on the test images, %, mean ± standard deviation over seeds. Bold: the highest mean of a row. "
        "AbMILP − [cls]: points; the ± of a difference is the root of the summed variances of its two heads over seeds. "
        "Entropy: of the weights that AbMILP gives to the T patches, nats; ln T would be the plain average."
    )
    return Table("accuracy", "Top-1 accuracy", note, columns, tuple(rows))


def top5(inputs: Inputs) -> Table:
    """The same of top-5 accuracy."""
    columns = (ENCODER, *(Column(head, title(head), "spread") for head in inputs.heads))
    rows = [
        Row((named(encoder), *map(spread, _over_heads(inputs, encoder, "top5"))), muted=is_random(encoder))
        for encoder in _probed(inputs)
    ]
    note = "Top-5 accuracy on the test images, %, mean ± standard deviation over seeds."
    return Table("accuracy-top5", "Top-5 accuracy", note, columns, tuple(rows), folded=True)


def every_probe(inputs: Inputs) -> Table:
    """One row per encoder and head, with what was selected and the command that makes the numbers again."""
    columns = (
        ENCODER,
        Column("head", "Head", "text"),
        Column("top1", "Top-1, %", "spread"),
        Column("top5", "Top-5, %", "spread"),
        Column("entropy", "Entropy, nats", "spread"),
        Column("ln_T", "ln T"),
        Column("n_seeds", "Seeds"),
        Column("selected", "Selected", "text", apart=True),
        Column("command", "Command", "text"),
    )
    rows = []
    for encoder in _probed(inputs):
        for probe in inputs.of(encoder):
            entropy = probe.measures.get("entropy")
            measures = (spread(probe.measures["top1"], 2), spread(probe.measures.get("top5"), 2), spread(entropy, 2))
            names = (named(encoder), Cell(title(probe.head), probe.head))
            limit = number(ceiling(probe)) if entropy else NOTHING
            made = (Cell(probe.selected, probe.selected), Cell(probe.command, probe.command) if probe.command else NOTHING)
            rows.append(Row((*names, *measures, limit, number(len(probe.seeds), 0), *made), muted=is_random(encoder)))
    note = "Every probe: mean ± standard deviation over seeds, what was selected on what, and the command that makes it again."
    return Table("probes", "Every probe", note, columns, tuple(rows), folded=True)


def published() -> Table:
    """Table 1 of the paper; the last column is computed here."""
    columns = (
        ENCODER,
        Column("vit", "ViT", "text"),
        Column("cls", "[cls]"),
        Column("average", "average"),
        Column("abmilp", "AbMILP"),
        Column("abmilp_minus_cls", "AbMILP − [cls]", apart=True),
    )
    rows = [
        Row(
            (
                Cell(entry.encoder, entry.encoder),
                Cell(entry.vit, entry.vit),
                *(number(value, 1) for value in (entry.cls, entry.average, entry.abmilp)),
                NOTHING if entry.gain is None else Cell(signed(entry.gain), entry.gain),
            ),
            entry.family,
        )
        for entry in table_1.TABLE_1
    ]
    note = (
        f"Published, ImageNet-1k: {table_1.WHAT}. The last column is computed from the others. Not measured here, and not "
        "comparable with the tables above in absolute terms: other encoders, other images, other training. What can be "
        "compared is the sign of AbMILP − [cls] for encoders of one family."
    )
    return Table("published-table-1", "Table 1 of the paper", note, columns, tuple(rows), table_1.SOURCE)


def _probed(inputs: Inputs) -> list[str]:
    return [encoder for encoder in inputs.encoders if inputs.of(encoder)]


def _over_heads(inputs: Inputs, encoder: str, name: str) -> list[Measure | None]:
    probes = [inputs.probes.get((encoder, head)) for head in inputs.heads]
    return [None if probe is None else probe.measures.get(name) for probe in probes]
