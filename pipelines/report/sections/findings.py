"""What this shows: how far trained encoders are above an untrained twin, and the limits of the numbers."""

import math
from dataclasses import replace

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Section, Text, section_of
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.tables import listed, title
from store.format.pretraining import LABELS

NO_TWIN = (
    "There is no untrained twin to compare with: add an encoder with --random-seed, or with --family untrained for a file "
    "of weights."
)
LIMITS = (
    "The spread after ± is over seeds only; the choice of test images alone moves a single accuracy by about {:.1f} points "
    "(one standard error). Whether differences hold for larger encoders and data is not shown here."
)
SAW_LABELS = (
    " Labels went into {}: where they are those of these training images, heads learn from features that fit them already."
)


def section(inputs: Inputs) -> Section:
    """Heads above those of the twin, the limits of the numbers, and what makes rows incomparable."""
    reasons = tuple(warnings(inputs))
    return section_of(
        "findings",
        "What this shows",
        _above_random(inputs),
        Text(caution(inputs), kind="note"),
        Text("Not everything here can be compared:", reasons, "notice") if reasons else None,
    )


def warnings(inputs: Inputs) -> list[str]:
    """What makes rows or cells of the table incomparable; empty if nothing does."""
    reasons = []
    for encoder in inputs.encoders:
        if len({tuple(sorted(probe.features.items())) for probe in inputs.probes_of(encoder)}) > 1:
            reasons.append(f"The heads of {encoder} were trained or tested on different feature sets; probe them again.")
        attention, probes = inputs.attention.get(encoder), inputs.probes_of(encoder)
        if attention and probes and attention.key not in {probe.features["test"] for probe in probes}:
            reasons.append(f"The attention of {encoder} is of another feature set than its probes; compute it again.")
    if len({a.data for a in inputs.attention.values()}) > 1 or len({p.n_test for p in inputs.probes.values()}) > 1:
        reasons.append("Not all encoders and heads were tested on the same images; rows are not comparable.")
    if len({(probe.trained_as, probe.n_training) for probe in inputs.probes.values()}) > 1:
        reasons.append("Not all heads were trained with the same recipe and seeds; the last section lists both.")
    return reasons


def _above_random(inputs: Inputs) -> Block:
    """Each head of each trained encoder against the same head on its untrained twin."""
    contrasts = [
        ((encoder, title(head), twin), inputs.probes[encoder, head], inputs.probes[twin, head])
        for encoder in inputs.encoders
        if (twin := inputs.twin(encoder)) is not None
        for head in inputs.heads
        if (encoder, head) in inputs.probes and (twin, head) in inputs.probes
    ]
    above = contrasts_table("above-twin", "Trained encoders above the untrained twin", ("Encoder", "Head", "Twin"), contrasts)
    return replace(above, folded=True) if above else Text(NO_TWIN)


def caution(inputs: Inputs) -> str:
    """What the choice of test images alone contributes, where an accuracy is nearest to one half; and who saw labels."""
    probes = list(inputs.probes.values())
    share = min((probe.score.mean / 100 for probe in probes), key=lambda share: abs(share - 0.5))
    error = 100 * math.sqrt(max(share * (1 - share), 0) / min(probe.n_test for probe in probes))
    labelled = [name for name in inputs.encoders if any(p.pretraining.family == LABELS for p in inputs.probes_of(name))]
    return LIMITS.format(error) + (SAW_LABELS.format(listed(labelled)) if labelled else "")
