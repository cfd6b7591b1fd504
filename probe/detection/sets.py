"""The feature sets that a detector learns from and is measured on, and what their objects are like."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from probe.detection.targets import cut_to, frame_of, has_area
from probe.sources import check_encoder
from store import FeatureStore, StoreError
from store.truths import boxes_in_view

AREAS = {
    "small": 32**2,
    "medium": 96**2,
    "large": math.inf,
}  # COCO's sizes: pixels of the original, of which objects have fewer
TOLERANCE = 0.5  # pixels of the frame


@dataclass(frozen=True, eq=False)
class ImagesWithObjects:
    """Images of a feature set.

    Attributes:
        store: a feature set with instances.
        rows: of the images, ascending.
    """

    store: FeatureStore
    rows: np.ndarray

    @property
    def image_ids(self) -> list[int]:
        """Whole numbers for COCO's format: those that the images are named after, as COCO's are, else their rows from 1."""
        ids = self.store.ids
        return image_numbers([ids[row] for row in self.rows], [row + 1 for row in self.rows.tolist()])


def image_numbers(names: Sequence[str], otherwise: Sequence[int]) -> list[int]:
    """Whole numbers for COCO's format: those that the images are named after, as COCO's are, if each has its own."""
    stems = [PurePosixPath(name).stem for name in names]
    numbers = [int(stem) for stem in stems if stem.isascii() and stem.isdigit()]
    return numbers if len(set(numbers)) == len(names) else list(otherwise)


def images_with_objects(store: FeatureStore, rows: Sequence[int] | np.ndarray | None = None) -> ImagesWithObjects:
    """Those images of a feature set, all by default, that could be read.

    Raises:
        StoreError: the set has no instances, or none of the images can be used.
    """
    requested = np.arange(len(store)) if rows is None else np.unique(np.asarray(rows, np.int64))
    usable = requested[store.valid[requested]]
    if not any((~store.instances.of(int(row)).crowds).any() for row in usable):
        raise StoreError(
            f"none of {len(requested):,} images of {store.where} could be read and has an object; "
            "extract images with annotations, or name others"
        )
    return ImagesWithObjects(store, usable)


def check_sets(training: FeatureStore, test: FeatureStore) -> None:
    """Refuse sets that do not belong together.

    Raises:
        StoreError: they are of two encoders or extractions, or have other classes.
    """
    check_encoder(training, test)
    test.check_evaluation_crop()
    ours, theirs = training.instances.classes, test.instances.classes
    if ours != theirs:
        only = [name for name in (*ours, *theirs) if (name in ours) != (name in theirs)]
        shown = f"only one of them has {', '.join(map(repr, only[:3]))}" if only else "their order differs"
        raise StoreError(
            f"the objects of {training.where} have {len(ours)} classes, those of {test.where} {len(theirs)}: {shown}; "
            "extract both from annotations with the same classes"
        )


def survey(store: FeatureStore, rows: np.ndarray, view: int = 0) -> dict[str, Any]:
    """Numbers of objects of some images of a feature set, as a view shows them; crowds are counted on their own.

    - `n_images`, that were looked at; `n_without`, images without objects, which are kept: all that is found in them is wrong;
    - `n_crowds`: masks of several objects, which are neither learnt nor counted;
    - `n_without_area`: boxes that are as wide or as high as nothing; they are not learnt;
    - `objects` by COCO's sizes; of these `outside`, which the view does not show at all: they can't be found, and count as
      missed; and `cut`, which it shows in part.
    """
    counted: dict[str, Any] = {"n_images": len(rows), "n_without": 0, "n_crowds": 0, "n_without_area": 0}
    counted |= {name: dict.fromkeys(AREAS, 0) for name in ("objects", "outside", "cut")}
    frame, crops = frame_of(store.grid), store.array(f"images/crop/view{view}").all()
    for row in rows.tolist():
        image = store.instances.of(row)
        is_whole = has_area(image.boxes)
        counted["n_without"] += bool(image.crowds.all())
        counted["n_crowds"] += int(image.crowds.sum())
        counted["n_without_area"] += int((~is_whole & ~image.crowds).sum())
        boxes = boxes_in_view(image.boxes, crops[row], False, frame)  # mirrored ones are as much outside
        inside = cut_to(boxes, frame)
        is_outside = ~has_area(inside)
        is_cut = (np.abs(inside - boxes) > TOLERANCE).any(1) & ~is_outside
        for i in np.flatnonzero(~image.crowds & is_whole):
            size = next(name for name, most in AREAS.items() if image.areas[i] < most)
            counted["objects"][size] += 1
            counted["outside"][size] += int(is_outside[i])
            counted["cut"][size] += int(is_cut[i])
    return counted


def notes_on(counted: Mapping[str, Any], which: str) -> list[str]:
    """Sentences for the user on a `survey`; `which` images were surveyed: "training" or "test"."""
    notes = []
    if counted["n_without"]:
        notes.append(f"{counted['n_without']:,} of {counted['n_images']:,} {which} images have no objects: negatives")
    if counted["n_without_area"]:
        notes.append(f"{counted['n_without_area']:,} boxes of {which} images have no area, and are not learnt")
    if n := sum(counted["outside"].values()):
        sizes = ", ".join(f"{number:,} {size}" for size, number in counted["outside"].items() if number)
        n_all = sum(counted["objects"].values())
        notes.append(f"{n:,} of {n_all:,} objects of {which} images are outside of the crop ({sizes})")
    return notes
