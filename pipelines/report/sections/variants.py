"""Variants of AbMILP: how its scores are computed (Table 5 in v2 of the paper, Table 3 in v1)."""

from collections.abc import Mapping
from functools import partial

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Column, Row, Section, Table
from pipelines.report.contrasts import table
from pipelines.report.measured import Probe
from pipelines.report.published import table_5
from pipelines.report.published.table_5 import Variant
from pipelines.report.studies import COSTS, Study, by_encoder, study_table
from pipelines.report.tables import NOTHING, change, difference, number, title

STUDY = "variants"
APART = "self-attention"  # a study of heads that are trained by a recipe of their own
KINDS = ("abmilp", "sa-abmilp")
ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "tanh": "Tanh"}
DEPTH = Column("depth", "Linear layers")
ACTIVATION = Column("activation", "Activation", "text")
SELF_ATTENTION = Column("self_attention", "Self-attention", "text")


def section(inputs: Inputs) -> Section | None:
    """None without the study `variants`."""
    study = inputs.studies.get(STUDY)
    if not study:
        return None
    plain = {encoder: _one_layer(probes) for encoder, probes in by_encoder(study).items()}
    contrasts = gained(study, plain)
    tables = [*([contrasts] if contrasts else []), measured(study, plain)]
    if apart := inputs.studies.get(APART):
        tables.append(measured(apart, plain, "variants-apart", "Trained by a recipe of their own"))
    return Section(STUDY, "Variants of AbMILP", (*tables, published(), published_v1()))


def measured(
    study: Study,
    plain: Mapping[str, Probe | None],
    name: str = "variants",
    heading: str = "How the scores of patches are computed",
) -> Table:
    """Each variant, and what it gains over AbMILP with one layer, which is given for each encoder."""

    def against(probe: Probe) -> Cell:
        one_layer = plain.get(probe.encoder)
        return NOTHING if probe is one_layer else change(difference(probe, one_layer))

    before = [(column, partial(_part, i)) for i, column in enumerate((DEPTH, ACTIVATION, SELF_ATTENTION))]
    after = [(Column("against_one_layer", "Against one layer", "spread"), against)]
    note = f"Against one layer: points. {COSTS}"
    return study_table(name, heading, study, before, after, note)


def published() -> Table:
    """Table 5 of v2."""
    note = f"Published: {table_5.WHAT}. Other images, encoder and training than above."
    return _published("published-table-5", "Table 5 of the paper (v2)", note, table_5.TABLE_5, table_5.SOURCE, 1)


def published_v1() -> Table:
    """Table 3 of v1."""
    note = (
        f"Published: {table_5.WHAT}. SA-AbMILP was trained with SGD, the others with LARS. "
        "Other images, encoder and training than above."
    )
    return _published("published-table-3-v1", "Table 3 of the paper (v1)", note, table_5.TABLE_3_V1, table_5.SOURCE_V1, 2)


def _published(name: str, heading: str, note: str, variants: tuple[Variant, ...], source: str, digits: int) -> Table:
    columns = (DEPTH, ACTIVATION, SELF_ATTENTION, Column("top1", "Top-1, %", apart=True))
    rows = tuple(Row((*_variant(variant), number(variant.accuracy, digits))) for variant in variants)
    return Table(name, heading, note, columns, rows, source)


def _variant(variant: Variant | None) -> tuple[Cell, Cell, Cell]:
    if variant is None:
        return NOTHING, NOTHING, NOTHING
    depth = number(variant.depth, 0) if variant.depth else NOTHING
    activation = Cell(variant.activation, variant.activation) if variant.activation else NOTHING
    return depth, activation, Cell("yes", "yes") if variant.self_attention else NOTHING


def _part(i: int, probe: Probe) -> Cell:
    return _variant(_variant_of(probe))[i]


def _variant_of(probe: Probe) -> Variant | None:
    """None for a head of another kind, which is in the study for comparison."""
    if probe.aggregator not in KINDS:
        return None
    depth, activation = probe.options.get("depth", 1), probe.options.get("activation", "relu")
    shown = ACTIVATIONS.get(activation, activation) if depth > 1 else ""
    return Variant(depth, shown, probe.score.mean, probe.aggregator == "sa-abmilp")


def _one_layer(probes: list[Probe]) -> Probe | None:
    """AbMILP as the paper uses it: the first head with one layer and no self-attention."""
    return next((p for p in probes if (v := _variant_of(p)) and v.depth == 1 and not v.self_attention), None)


def gained(study: Study, plain: Mapping[str, Probe | None]) -> Table | None:
    """Each variant against AbMILP with one layer on the same encoder; None where there are not both."""
    contrasts = [
        ((encoder, title(probe.head)), probe, one_layer)
        for encoder, probes in by_encoder(study).items()
        if (one_layer := plain[encoder]) is not None
        for probe in probes
        if probe is not one_layer and _variant_of(probe) is not None
    ]
    return table("variants-gains", "Against AbMILP with one linear layer", ("Encoder", "Variant"), contrasts)
