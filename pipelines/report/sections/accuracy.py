"""Accuracy: encoder by head as in Table 1, with the published table."""

from pipelines.report import gains
from pipelines.report.collect import Inputs
from pipelines.report.content import Section, Table
from pipelines.report.estimate import difference
from pipelines.report.measured import FIRST_HEADS, Measure
from pipelines.report.published.printed import printed_table
from pipelines.report.remarks import SENTENCE, TITLES, reasons, remarks, score_name
from pipelines.report.tables import (
    EFFECTIVE,
    ceiling,
    cells,
    change,
    each,
    effective,
    encoders,
    heads,
    numbers,
    spreads,
    table,
    texts,
    title,
)
from probe.result_files import BALANCED, NLL, REACHED, SHORT

CONVERGED = (
    "Converged: logistic regression on the vectors that the trained aggregator gives; where it is ahead, the head is not "
    "trained out. "
)
MANY = 8  # heads, of which more make a table that is folded: the leaderboard has the same numbers


def section(inputs: Inputs) -> Section:
    """What heads reach and what was noted of them, what AbMILP gains, every number of every probe, and Table 1."""
    noted = remarks(inputs.probes[key] for key in _keys(inputs))
    tables = (gains_table(inputs), every_probe(inputs), printed_table("table-1"))
    return Section("accuracy", "Accuracy", (scores(inputs), *noted, *filter(None, tables)))


def gains_table(inputs: Inputs) -> Table | None:
    """What AbMILP gains on each encoder, and how much more with stochastic depth; None without gains."""
    return gains.table(inputs.probes, gains.contrasts_of_depth(inputs.probes))


def scores(inputs: Inputs) -> Table:
    """A row for each encoder that was probed, a column for each head; the highest means of a row, as shown, are marked."""
    fitted = {head for (_, head), probe in inputs.probes.items() if REACHED in probe.measures}
    beside, name = [head for head in FIRST_HEADS if head in fitted], score_name(inputs.probes.values())

    def entropy(encoder: str) -> Measure | None:
        return _measure(inputs, encoder, "abmilp", "entropy")

    note = (
        f"{SENTENCE[name]} on the test images, %, mean ± standard deviation over seeds. Bold: the highest mean of a row. "
        "AbMILP − [cls]: points; the ± of a difference is the root of the summed variances of its two heads over seeds. "
        f"{CONVERGED if beside else ''}Entropy: of the weights that AbMILP gives to the T patches, nats; ln T would be the "
        f"plain average. {EFFECTIVE}"
    )
    if dashes := reasons(inputs.probes, _probed_encoders(inputs), inputs.heads):
        note += f" A dash: {dashes}."
    return table(
        "accuracy",
        SENTENCE[name],
        note,
        _probed_encoders(inputs),
        encoders(random=inputs.untrained),
        each(inputs.heads, lambda h: spreads(h, title(h), lambda e: _measure(inputs, e, h, name), best="row")),
        each(
            beside,
            lambda h: spreads(
                f"{h}_converged", f"{title(h)}, converged", lambda e: _measure(inputs, e, h, REACHED), apart=True
            ),
        ),
        cells(
            "abmilp_minus_cls",
            "AbMILP − [cls]",
            lambda e: change(difference(*(inputs.probes.get((e, h)) for h in ("abmilp", "cls")))),
            "spread",
            apart=True,
        ),
        spreads("entropy", "Entropy", entropy, 2, apart=True),
        numbers("ln_T", "ln T", lambda encoder: ceiling(inputs.probes.get((encoder, "abmilp")))),
        cells("effective_patches", "Effective patches", lambda e: effective(one.mean if (one := entropy(e)) else None)),
        folded=len(inputs.heads) > MANY,
    )


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
    note = "Every probe: mean ± standard deviation over seeds, what was selected on what, and the command that reproduces it."
    if REACHED in shown:
        note += f" {CONVERGED}Standard errors are of the paired difference over test images."
    if f"train_{name}" in shown:
        note += f" {TITLES[name]} in training: in the last epoch, of each image when the head learnt from it."
    return table(
        "probes",
        "Every probe",
        f"{note} {EFFECTIVE}",
        [inputs.probes[key] for key in _keys(inputs)],
        encoders(),
        heads(),
        each(shown, lambda measure: spreads(measure, shown[measure], lambda probe: probe.measures.get(measure), 2)),
        numbers("ln_T", "ln T", lambda probe: ceiling(probe) if "entropy" in probe.measures else None),
        cells(
            "effective_patches",
            "Effective patches",
            lambda p: effective(p.measures["entropy"].mean if "entropy" in p.measures else None),
        ),
        numbers("n_seeds", "Seeds", lambda probe: len(probe.seeds), 0),
        texts("selected", "Selected", lambda probe: probe.selected, apart=True),
        texts("command", "Command", lambda probe: probe.command),
        folded=True,
    )


def _keys(inputs: Inputs) -> list[tuple[str, str]]:
    return [(encoder, probe.head) for encoder in _probed_encoders(inputs) for probe in inputs.probes_of(encoder)]


def _probed_encoders(inputs: Inputs) -> list[str]:
    return [encoder for encoder in inputs.encoders if inputs.probes_of(encoder)]


def _measure(inputs: Inputs, encoder: str, head: str, name: str) -> Measure | None:
    probe = inputs.probes.get((encoder, head))
    return None if probe is None else probe.measures.get(name)
