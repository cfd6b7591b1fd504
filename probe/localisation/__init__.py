"""Weakly supervised localisation: where a score map says that the object is, against boxes that were drawn by hand.

What finds and compares boxes needs no torch; `maps` makes the score maps.
"""

from probe.localisation.boxes import InView, into_view, iou
from probe.localisation.contours import Candidates, candidates
from probe.localisation.max_box_acc import IOUS, Localised, MaxBoxAcc, best_ious, measure, measure_one
from probe.localisation.score_map import centre_map, evaluation_map, side_of

__all__ = [
    "IOUS",
    "Candidates",
    "InView",
    "Localised",
    "MaxBoxAcc",
    "best_ious",
    "candidates",
    "centre_map",
    "evaluation_map",
    "into_view",
    "iou",
    "measure",
    "measure_one",
    "side_of",
]
