"""Kinds of results in a project: the folder of each, what it holds, and the command that writes it."""

import re

# Heads that `blocks` trains are not among "probes", as its own result has their measures.
KINDS = {
    "probes": ("ENCODER/HEAD/metrics.json", "probe"),
    "studies": ("STUDY/ENCODER/HEAD/metrics.json", "probe"),
    "scores": ("TEST/ENCODER/HEAD/metrics.json", "score"),
    "segmentation": ("DATASET/ENCODER/metrics.json", "segment"),
    "depth": ("DATASET/ENCODER/metrics.json", "depth"),
    "detection": ("DATASET/ENCODER/metrics.json", "detect"),
    "localisation": ("ENCODER/localisation.json", "localise"),
    "blocks": ("ENCODER/metrics.json", "blocks"),
    "geometry": ("ENCODER/metrics.json", "geometry"),
    "similarity": ("NAME/metrics.json", "similarity"),
    "norms": ("ENCODER/metrics.json", "norms"),
    "correspondence": ("DATASET/ENCODER/metrics.json", "correspond"),
    "retrieval": ("DATASET/ENCODER/metrics.json", "retrieve"),
    "tracking": ("DATASET/ENCODER/metrics.json", "track"),
    "few_shot": ("ENCODER/metrics.json", "few-shot"),
}
RECEIPTS = "receipts"
OF_HEADS = ("probes", "studies", "scores")  # kinds whose results are in ENCODER/HEAD; others in ENCODER
OF_SETS = tuple(kind for kind, (holds, _) in KINDS.items() if holds.startswith("DATASET/"))  # of several data sets on one page
LINEAR = "linear"  # what `blocks` calls a trained head


def command_of(kind: str) -> str:
    return f"beyondcls {KINDS[kind][1]}"


def pattern_of(holds: str) -> str:
    """Of the files that a folder holds: `*/metrics.json`."""
    return re.sub("[A-Z]+", "*", holds)
