"""Weakly supervised localisation: where a score map says that the object is, against boxes that were drawn by hand.

What finds and compares boxes needs no torch; `maps` makes the score maps.
"""

from probe.localisation.boxes import InView, into_view, iou
from probe.localisation.contours import Candidates, candidates, largest_box
from probe.localisation.frame import Frame
from probe.localisation.max_box_acc import (
    IOUS,
    Localised,
    MaxBoxAcc,
    best_ious,
    measure,
    measure_one,
    predicted_box,
)
from probe.localisation.score_map import centre_map, evaluation_map

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
