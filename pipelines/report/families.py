"""Families of encoders as the page shows them: a colour, a mark and a word for how each was trained."""

from collections.abc import Mapping

from pipelines.report.content import Look
from pipelines.report.estimate import Probes
from store.format.pretraining import JOINT, LABELS, MASKED, UNTRAINED, Pretraining

OTHER = "another family, or not known"
LOOKS = {
    MASKED: Look(MASKED, "var(--series-0)", "solid", "o", "●"),
    JOINT: Look(JOINT, "var(--series-1)", "solid", "s", "■"),
    LABELS: Look(LABELS, "var(--series-2)", "solid", "^", "▲"),
    OTHER: Look(OTHER, "var(--series-3)", "solid", "D", "◆"),
    UNTRAINED: Look(UNTRAINED, "var(--series-random)", "dashed", "x", "×"),
}


SHORT = {MASKED: "masked", JOINT: "joint", LABELS: "labels", OTHER: "–", UNTRAINED: "untrained"}


def family_of(pretraining: Pretraining) -> str:
    """A key of LOOKS."""
    if pretraining.is_untrained:
        return UNTRAINED
    return pretraining.family if pretraining.family in LOOKS else OTHER


def families(probes: Probes) -> Mapping[str, str]:
    """By encoder."""
    return {encoder: family_of(probe.pretraining) for (encoder, _), probe in probes.items()}
