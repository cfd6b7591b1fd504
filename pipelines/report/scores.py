"""What heads are compared by: top-1 accuracy, or mean average precision where images have several labels."""

from collections.abc import Iterable

from pipelines.report.measured import Probe

TITLES = {"top1": "Top-1", "map": "mAP"}
WORDS = {"top1": "top-1 accuracy", "map": "mean average precision"}
SENTENCE = {"top1": "Top-1 accuracy", "map": "Mean average precision"}  # where it begins one
AXES = {"top1": "top-1, %", "map": "mAP, %"}


def score_name(probes: Iterable[Probe]) -> str:
    """What these heads are compared by: "top1" or "map", a key of TITLES; the former if there are none."""
    return next((probe.measure for probe in probes), "top1")
