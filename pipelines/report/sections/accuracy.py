"""Accuracy: encoder by head as in Table 1, and the published table beside it."""

from collections.abc import Sequence

from pipelines.report import gains
from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Column, Row, Section, Table
from pipelines.report.dashes import reasons
from pipelines.report.measured import FIRST_HEADS, Measure
from pipelines.report.published.printed import printed
from pipelines.report.remarks import one_order, remarks
from pipelines.report.scores import SENTENCE, TITLES, score_name
from pipelines.report.tables import EFFECTIVE, NOTHING, ceiling, change, effective, gain, named, number, spread, title
from probe.result_files import BALANCED, NLL, REACHED, SHORT

CONVERGED = (
    "Converged: logistic regression to convergence on the vectors that the trained aggregator gives, its penalty selected on "
    "held-out training images; where it is ahead, the head is not trained out, and a dash is where none was fitted. "
)
MANY = 8  # heads, of which more make a table that is folded: the leaderboard has the same numbers
ENCODER = Column("encoder", "Encoder", "text")


def section(inputs: Inputs) -> Section:
    """What heads reach and what was noted of them, what AbMILP gains, top-5, every number of every probe, and Table 1."""
    gained = gains_table(inputs)
    blocks = (
        scores(inputs),
        *remarks(inputs.probes[key] for key in _keys(inputs)),
        *((gained,) if gained else ()),
        *((top5(inputs),) if score_name(inputs.probes.values()) == "top1" else ()),
        every_probe(inputs),
        printed("table-1"),
    )
    return Section("accuracy", "Accuracy", blocks)


def gains_table(inputs: Inputs) -> Table | None:
    """What AbMILP gains on each encoder, and how much more with stochastic depth; None without gains."""
    return gains.table(inputs.probes, gains.contrasts_of_depth(inputs.probes))


def scores(inputs: Inputs) -> Table:
    """A row for each encoder that was probed, a column for each head; the highest means of a row, as shown, are marked."""
    fitted = {head for (_, head), probe in inputs.probes.items() if REACHED in probe.measures}
    beside = [head for head in FIRST_HEADS if head in fitted]
    columns = (
        ENCODER,
        *(Column(head, title(head), "spread") for head in inputs.heads),
        *(Column(f"{head}_converged", f"{title(head)}, converged", "spread", apart=True) for head in beside),
        Column("abmilp_minus_cls", "AbMILP − [cls]", "spread", apart=True),
        Column("entropy", "Entropy", "spread", apart=True),
        Column("ln_T", "ln T"),
        Column("effective_patches", "Effective patches"),
    )
    rows, random, name = [], inputs.untrained, score_name(inputs.probes.values())
    for encoder in _probed(inputs):
        best = max(round(probe.score.mean, 1) for probe in inputs.probes_of(encoder))
        cells = [spread(m, best=m is not None and round(m.mean, 1) == best) for m in _over_heads(inputs, encoder, name)]
        cells += map(spread, _over_heads(inputs, encoder, REACHED, beside))
        abmilp, difference = inputs.probes.get((encoder, "abmilp")), gain(inputs, encoder)
        entropy = abmilp.measures.get("entropy") if abmilp else None
        apart = (change(difference), spread(entropy, 2), number(ceiling(abmilp)), effective(entropy.mean if entropy else None))
        rows.append(Row((named(encoder, encoder in random), *cells, *apart), muted=encoder in random))
    note = (
        f"{SENTENCE[name]} on the test images, %, mean ± standard deviation over seeds. Bold: the highest mean of a row. "
        "AbMILP − [cls]: points; the ± of a difference is the root of the summed variances of its two heads over seeds. "
        f"{CONVERGED if beside else ''}Entropy: of the weights that AbMILP gives to the T patches, nats; ln T would be the "
        f"plain average. {EFFECTIVE}"
    )
    if dashes := reasons(inputs.probes, _probed(inputs), inputs.heads):
        note += f" A dash: {dashes}."
    note = " ".join(filter(None, (note, one_order(inputs.probes.values()))))
    return Table("accuracy", SENTENCE[name], note, columns, tuple(rows), folded=len(inputs.heads) > MANY)


def top5(inputs: Inputs) -> Table:
    """Top-5 accuracy, likewise for each encoder and head."""
    columns = (ENCODER, *(Column(head, title(head), "spread") for head in inputs.heads))
    random = inputs.untrained
    rows = [
        Row((named(encoder, encoder in random), *map(spread, _over_heads(inputs, encoder, "top5"))), muted=encoder in random)
        for encoder in _probed(inputs)
    ]
    note = "Top-5 accuracy on the test images, %, mean ± standard deviation over seeds."
    note = " ".join(filter(None, (note, one_order(inputs.probes.values()))))
    return Table("accuracy-top5", "Top-5 accuracy", note, columns, tuple(rows), folded=True)


def every_probe(inputs: Inputs) -> Table:
    """One row per encoder and head, with what was selected and the command that reproduces the numbers."""
    name = score_name(inputs.probes.values())
    titles = {
        name: f"{TITLES[name]}, %",
        **({"top5": "Top-5, %"} if name == "top1" else {}),
        BALANCED: "Balanced accuracy, %",
        NLL: "NLL, nats",
        REACHED: "Converged, %",
        SHORT: "Short of it, standard errors",
        f"train_{name}": f"{TITLES[name]} in training, %",
        "entropy": "Entropy, nats",
    }
    measured = {measure for probe in inputs.probes.values() for measure in probe.measures}
    shown = {measure: title for measure, title in titles.items() if measure in (*measured, name, "top5", "entropy")}
    columns = (
        ENCODER,
        Column("head", "Head", "text"),
        *(Column(measure, title, "spread") for measure, title in shown.items()),
        Column("ln_T", "ln T"),
        Column("effective_patches", "Effective patches"),
        Column("n_seeds", "Seeds"),
        Column("selected", "Selected", "text", apart=True),
        Column("command", "Command", "text"),
    )
    rows, random = [], inputs.untrained
    for encoder in _probed(inputs):
        for probe in inputs.probes_of(encoder):
            entropy = probe.measures.get("entropy")
            measures = [spread(probe.measures.get(measure), 2) for measure in shown]
            names = (named(encoder, encoder in random), Cell(title(probe.head), probe.head))
            limit = (number(ceiling(probe)), effective(entropy.mean)) if entropy else (NOTHING, NOTHING)
            made = (Cell(probe.selected, probe.selected), Cell(probe.command, probe.command) if probe.command else NOTHING)
            rows.append(Row((*names, *measures, *limit, number(len(probe.seeds), 0), *made), muted=encoder in random))
    note = "Every probe: mean ± standard deviation over seeds, what was selected on what, and the command that reproduces it."
    if REACHED in shown:
        note += f" {CONVERGED}Standard errors are of the paired difference over test images."
    if f"train_{name}" in shown:
        note += f" {TITLES[name]} in training: in the last epoch, of each image when the head learnt from it."
    note = " ".join(filter(None, (note, EFFECTIVE, one_order(inputs.probes.values()))))
    return Table("probes", "Every probe", note, columns, tuple(rows), folded=True)


def _keys(inputs: Inputs) -> list[tuple[str, str]]:
    return [(encoder, probe.head) for encoder in _probed(inputs) for probe in inputs.probes_of(encoder)]


def _probed(inputs: Inputs) -> list[str]:
    return [encoder for encoder in inputs.encoders if inputs.probes_of(encoder)]


def _over_heads(inputs: Inputs, encoder: str, name: str, heads: Sequence[str] | None = None) -> list[Measure | None]:
    probes = [inputs.probes.get((encoder, head)) for head in (inputs.heads if heads is None else heads)]
    return [None if probe is None else probe.measures.get(name) for probe in probes]
