"""Variants of AbMILP: how its scores are computed (Table 5 in v2 of the paper, Table 3 in v1)."""

from pipelines.report.collect import Inputs
from pipelines.report.content import Section, Table, section_of
from pipelines.report.estimate import Estimate, difference
from pipelines.report.measured import Probe
from pipelines.report.published.printed import printed_table
from pipelines.report.studies import COSTS, Study, by_encoder, gain_table, study_table
from pipelines.report.tables import cells, change, numbers, texts, title

STUDY = "variants"
APART = "self-attention"  # a study of heads that are trained by a recipe of their own
KINDS = ("abmilp", "sa-abmilp")  # others are in the study for comparison
ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "tanh": "Tanh"}


def section(inputs: Inputs) -> Section | None:
    """None without the study `variants`."""
    if not (study := inputs.studies.get(STUDY)):
        return None
    plain = {encoder: _one_layer(probes) for encoder, probes in by_encoder(study).items()}

    def over(probe: Probe) -> Estimate | None:
        return None if probe is plain.get(probe.encoder) else difference(probe, plain.get(probe.encoder))

    def measured(study: Study, name: str, heading: str) -> Table:
        """Each variant, and what it gains over AbMILP with one layer of the same encoder."""
        before = [
            numbers("depth", "Linear layers", lambda probe: _depth(probe) if probe.aggregator in KINDS else None, 0),
            texts("activation", "Activation", _activation),
            texts("self_attention", "Self-attention", lambda probe: "yes" if probe.aggregator == "sa-abmilp" else ""),
        ]
        against = cells("against_one_layer", "Against one layer", lambda p: change(over(p)), "spread")
        return study_table(name, heading, study, before, [against], f"Against one layer: points. {COSTS}")

    return section_of(
        STUDY,
        "Variants of AbMILP",
        gain_table(
            "variants-gains",
            "Against AbMILP with one linear layer",
            "Variant",
            study,
            _one_layer,
            lambda probe, _: title(probe.head),
            lambda probe: probe.aggregator in KINDS,
        ),
        measured(study, "variants", "How the scores of patches are computed"),
        measured(apart, "variants-apart", "Trained by a recipe of their own") if (apart := inputs.studies.get(APART)) else None,
        printed_table("table-5"),
        printed_table("table-3-v1"),
    )


def _depth(probe: Probe) -> int:
    return int(probe.options.get("depth", 1))


def _activation(probe: Probe) -> str:
    """Between layers; none with one."""
    name = str(probe.options.get("activation", "relu")) if probe.aggregator in KINDS and _depth(probe) > 1 else ""
    return ACTIVATIONS.get(name, name)


def _one_layer(probes: list[Probe]) -> Probe | None:
    """AbMILP as the paper uses it: the first head with one layer and no self-attention."""
    return next((p for p in probes if p.aggregator == "abmilp" and _depth(p) == 1), None)
