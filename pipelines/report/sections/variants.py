"""Variants of AbMILP: how its scores are computed (Table 5 in v2 of the paper, Table 3 in v1)."""

from collections.abc import Mapping

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Section, Table
from pipelines.report.contrasts import table
from pipelines.report.estimate import difference
from pipelines.report.measured import Probe
from pipelines.report.published.printed import printed
from pipelines.report.studies import COSTS, Study, by_encoder, study_table
from pipelines.report.tables import NOTHING, cells, change, numbers, texts, title

STUDY = "variants"
APART = "self-attention"  # a study of heads that are trained by a recipe of their own
KINDS = ("abmilp", "sa-abmilp")
ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "tanh": "Tanh"}


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
        numbers("depth", "Linear layers", lambda probe: _depth(probe) if _is_variant(probe) else None, 0),
        texts("activation", "Activation", lambda probe: ACTIVATIONS.get(name := _activation(probe), name)),
        texts("self_attention", "Self-attention", lambda probe: "yes" if probe.aggregator == "sa-abmilp" else ""),
    ]
    after = [cells("against_one_layer", "Against one layer", against, "spread")]
    note = f"Against one layer: points. {COSTS}"
    return study_table(name, heading, study, before, after, note)


def _is_variant(probe: Probe) -> bool:
    """Or it is a head of another kind, which is in the study for comparison."""
    return probe.aggregator in KINDS


def _depth(probe: Probe) -> int:
    return int(probe.options.get("depth", 1))


def _activation(probe: Probe) -> str:
    """Between layers; none with one."""
    return str(probe.options.get("activation", "relu")) if _is_variant(probe) and _depth(probe) > 1 else ""


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
