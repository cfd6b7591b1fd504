"""What this shows: how far trained encoders are above an untrained twin, and the limits of the numbers."""

import math
from dataclasses import replace

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Section, Text, section_of
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.tables import listed, title
from store.format.pretraining import LABELS

NO_TWIN = (
    "An untrained twin to compare the trained encoders with is missing: add an encoder with --random-seed, or, if random "
    "weights come from a file, with --family untrained."
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
    """The limits of the numbers: sizes of the sets, seeds, the sampling error, and what encoders were trained on."""
    probes = list(inputs.probes.values())
    n_test, n_training = min(p.n_test for p in probes), max(p.n_training for p in probes)
    n_seeds, n_classes = min(len(p.seeds) for p in probes), max(p.n_classes for p in probes)
    share = probes[0].score.mean / 100
    for probe in probes:  # nearest to one half: the widest
        share = min(share, probe.score.mean / 100, key=lambda p: abs(p - 0.5))
    error = 100 * math.sqrt(max(share * (1 - share), 0) / n_test)
    small = "This is a small experiment: " if n_training < 100_000 else "The basis: "
    return (
        f"{small}{n_training:,} training and {n_test:,} test images of {n_classes:,} classes, "
        f"{n_seeds} seed{'s' if n_seeds > 1 else ''} per head. The spread after ± is over seeds only; "
        f"the choice of test images alone moves a single accuracy by about {error:.1f} points (one standard error). "
        f"Whether such differences hold for larger encoders and data is not shown here.{_labels_seen(inputs)}"
    )


def _labels_seen(inputs: Inputs) -> str:
    """A sentence on encoders whose features may fit the labels of training images better than those of others."""
    names = [name for name in inputs.encoders if any(p.pretraining.family == LABELS for p in inputs.probes_of(name))]
    if not names:
        return ""
    return (
        f" Labels went into {listed(names)}: where they are those of these training images, heads learn from features that fit "
        "them already, and only the test images are new."
    )
