"""Weakly supervised localisation: where a score map says that the object is, against boxes that were drawn by hand.

What finds and compares boxes needs no torch; `maps` makes the score maps.
"""

from probe.localisation.boxes import Candidates, InView, candidates, centre_map, evaluation_map, into_view, iou, largest_box
from probe.localisation.max_box_acc import (
    IOUS,
    Localised,
    MaxBoxAcc,
    best_ious,
    measure,
    measure_one,
    predicted_box,
)
from probe.localisation.truths import Frame

__all__ = [
    "IOUS",
    "Candidates",
    "Frame",
    "InView",
    "Localised",
    "MaxBoxAcc",
    "best_ious",
    "candidates",
    "centre_map",
    "evaluation_map",
    "into_view",
    "iou",
    "largest_box",
    "measure",
    "measure_one",
    "predicted_box",
]
