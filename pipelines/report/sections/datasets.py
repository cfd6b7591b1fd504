"""The larger form of Table 1: encoder by head on several sets of images."""

from pipelines.report.claims import table_by_dataset
from pipelines.report.collect import Inputs
from pipelines.report.content import Section, Table, section_of
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.estimate import difference
from pipelines.report.gains import gains
from pipelines.report.measured import Entries, Measure, Probe, by_accuracy, trained_first
from pipelines.report.remarks import reasons
from pipelines.report.tables import (
    cells,
    change,
    differences,
    each,
    encoders,
    numbers,
    spreads,
    texts,
    title,
)
from pipelines.report.tables import table as declared

MEASURES = {"top1": "top-1", "map": "mAP"}
NOTE = "Top-1 accuracy, or mAP where images have several labels, on the test images, %, mean ± standard deviation over seeds."
SPREAD = (
    "± of a difference: the root of the summed variances over seeds; 95 %: over test images and seeds. Errors removed: of "
    "those of [cls], by AbMILP."
)


def section(inputs: Inputs) -> Section | None:
    """A table over all data sets, and the claims on each; None without other data sets. The leaderboard has all heads."""
    if not inputs.datasets:
        return None
    return section_of("datasets", "Across data sets", table(inputs), transfer_table(inputs), table_by_dataset(inputs.datasets))


def transfer_table(inputs: Inputs) -> Table | None:
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


def _shared_heads(inputs: Inputs) -> list[str]:
    """Heads of at least two data sets; all of them where there is one set, or none are shared."""
    heads = [{head for _, head in probes} for probes in inputs.datasets.values()]
    ordered = by_accuracy(probe for probes in inputs.datasets.values() for probe in probes.values())
    return [head for head in ordered if sum(head in of_set for of_set in heads) > 1] or ordered


def table(inputs: Inputs) -> Table:
    """A row for each encoder on each data set, a column for each head that several sets have."""
    heads_of_several = _shared_heads(inputs)
    rows, note = [], f"{NOTE} Bold: the highest mean of a row. {SPREAD}"
    for name, probes in inputs.datasets.items():
        shown = [e for e in trained_first(probes) if any((e, head) in probes for head in heads_of_several)]
        gained = {encoder: gain for (encoder, over), gain in gains(probes).items() if over == "cls"}
        by_head = {e: {h: p for h in heads_of_several if (p := probes.get((e, h)))} for e in shown}
        rows += [
            Entries(dataset=name, by_head=by_head[e], any=next(iter(by_head[e].values())), gain=gained.get(e)) for e in shown
        ]
        if dashes := reasons(probes, shown, heads_of_several):
            note += f" A dash on {name}: {dashes}."
    return declared(
        "datasets",
        "Encoder by head by data set",
        note,
        rows,
        texts("dataset", "Data set", lambda row: row.dataset, filters=True),
        encoders(lambda row: row.any, filters=True),
        texts("measure", "Measure", lambda row: MEASURES[row.any.measure]),
        each(heads_of_several, lambda head: spreads(head, title(head), lambda row: _score(row.by_head.get(head)), best="row")),
        differences(
            "abmilp_minus_cls",
            "AbMILP − [cls]",
            lambda row: difference(row.by_head.get("abmilp"), row.by_head.get("cls")),
            apart=True,
        ),
        cells(
            "error_share",
            "Errors of [cls] removed, %",
            lambda row: change(row.gain and row.gain.share),
            "spread",
            optional=True,
        ),
        numbers("n_training", "Training images", lambda row: row.any.n_training, 0, apart=True),
        numbers("n_test", "Test images", lambda row: row.any.n_test, 0),
        muted=lambda row: row.any.pretraining.is_untrained,
    )


def _score(probe: Probe | None) -> Measure | None:
    return None if probe is None else probe.score
