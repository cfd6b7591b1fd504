"""What the objects of some images are like, and which of them a view does not show."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.detection.average_precision import AREAS, size_of
from probe.detection.boxes import cut_to, has_area
from probe.detection.frame import frame_of
from store import FeatureStore
from store.truths import boxes_in_view

TOLERANCE = 0.5  # pixels of the frame


def _zeros() -> dict[str, int]:
    return dict.fromkeys(AREAS, 0)


@dataclass
class Survey:
    """Numbers of objects, those of COCO's sizes apart; crowds are counted on their own.

    Attributes:
        n_images: that were looked at.
        n_without: images without objects, which are kept: all that is found in them is wrong.
        n_crowds: masks of several objects, which are neither learnt nor counted.
        n_without_area: boxes that are as wide or as high as nothing; they are not learnt.
        objects: by size.
        outside: those that the view does not show at all; they can't be found, and count as missed.
        cut: those that it shows in part.
    """

    n_images: int = 0
    n_without: int = 0
    n_crowds: int = 0
    n_without_area: int = 0
    objects: dict[str, int] = field(default_factory=_zeros)
    outside: dict[str, int] = field(default_factory=_zeros)
    cut: dict[str, int] = field(default_factory=_zeros)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))

    def notes(self, which: str) -> list[str]:
        """Sentences for the user; `which` images they are of: "training" or "test"."""
        notes = []
        if self.n_without:
            notes.append(f"{self.n_without:,} of {self.n_images:,} {which} images have no objects, and stay as negatives")
        if self.n_without_area:
            notes.append(f"{self.n_without_area:,} boxes of {which} images have no area, and are not learnt")
        if n := sum(self.outside.values()):
            sizes = ", ".join(f"{number:,} {size}" for size, number in self.outside.items() if number)
            notes.append(f"{n:,} of {sum(self.objects.values()):,} objects of {which} images are outside of the crop ({sizes})")
        return notes


def survey(store: FeatureStore, rows: np.ndarray, view: int = 0) -> Survey:
    """Count the objects of some images of a feature set, as a view shows them."""
    counted, frame = Survey(n_images=len(rows)), frame_of(store.grid)
    crops = store.array(f"images/crop/view{view}").all()
    for row in rows.tolist():
        image = store.instances.of(row)
        counted.n_without += not (~image.crowds).any()
        counted.n_crowds += int(image.crowds.sum())
        whole = has_area(image.boxes)
        counted.n_without_area += int((~whole & ~image.crowds).sum())
        boxes = boxes_in_view(image.boxes, crops[row], False, frame)  # mirrored ones are as much outside
        inside = cut_to(boxes, frame)
        is_outside = ~has_area(inside)
        is_cut = (np.abs(inside - boxes) > TOLERANCE).any(1) & ~is_outside
        for i in np.flatnonzero(~image.crowds & whole):
            size = size_of(float(image.areas[i]))
            counted.objects[size] += 1
            counted.outside[size] += int(is_outside[i])
            counted.cut[size] += int(is_cut[i])
    return counted
