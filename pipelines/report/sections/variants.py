"""Variants of AbMILP: how its scores are computed (Table 5 in v2 of the paper, Table 3 in v1)."""

from collections.abc import Mapping

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Column, Section, Table
from pipelines.report.contrasts import table
from pipelines.report.estimate import difference
from pipelines.report.measured import Probe
from pipelines.report.published.printed import printed
from pipelines.report.studies import COSTS, Study, by_encoder, study_table
from pipelines.report.tables import NOTHING, change, number, title

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
    return Section(STUDY, "Variants of AbMILP", (*tables, printed("table-5"), printed("table-3-v1")))


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

    before = [
        (DEPTH, lambda probe: number(_depth(probe), 0) if _is_variant(probe) else NOTHING),
        (ACTIVATION, _activation),
        (SELF_ATTENTION, lambda probe: Cell("yes", "yes") if probe.aggregator == "sa-abmilp" else NOTHING),
    ]
    after = [(Column("against_one_layer", "Against one layer", "spread"), against)]
    note = f"Against one layer: points. {COSTS}"
    return study_table(name, heading, study, before, after, note)


def _is_variant(probe: Probe) -> bool:
    """Or it is a head of another kind, which is in the study for comparison."""
    return probe.aggregator in KINDS


def _depth(probe: Probe) -> int:
    return int(probe.options.get("depth", 1))


def _activation(probe: Probe) -> Cell:
    """Between layers; a dash with one."""
    if not _is_variant(probe) or _depth(probe) < 2:
        return NOTHING
    activation = probe.options.get("activation", "relu")
    shown = ACTIVATIONS.get(activation, activation)
    return Cell(shown, shown)


def _one_layer(probes: list[Probe]) -> Probe | None:
    """AbMILP as the paper uses it: the first head with one layer and no self-attention."""
    return next((p for p in probes if p.aggregator == "abmilp" and _depth(p) == 1), None)


def gained(study: Study, plain: Mapping[str, Probe | None]) -> Table | None:
    """Each variant against AbMILP with one layer on the same encoder; None where there are not both."""
    contrasts = [
        ((encoder, title(probe.head)), probe, one_layer)
        for encoder, probes in by_encoder(study).items()
        if (one_layer := plain[encoder]) is not None
        for probe in probes
        if probe is not one_layer and _is_variant(probe)
    ]
    return table("variants-gains", "Against AbMILP with one linear layer", ("Encoder", "Variant"), contrasts)
