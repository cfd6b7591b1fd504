"""The feature sets that a detector learns from and is measured on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from store import FeatureStore, StoreError
from store.format.spec import EXTENDABLE_FIELDS


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
    if differ := training.spec.explained(test.spec, EXTENDABLE_FIELDS):
        raise StoreError(
            f"{training.where} ({training.attributes['encoder']}, key {training.spec.key}) and {test.where} "
            f"({test.attributes['encoder']}, key {test.spec.key}) are of two encoders or extractions: {differ} differ"
        )
    ours, theirs = training.instances.classes, test.instances.classes
    if ours != theirs:
        only = [name for name in (*ours, *theirs) if (name in ours) != (name in theirs)]
        shown = f"only one of them has {', '.join(map(repr, only[:3]))}" if only else "their order differs"
        raise StoreError(
            f"the objects of {training.where} have {len(ours)} classes, those of {test.where} {len(theirs)}: {shown}; "
            "extract both from annotations with the same classes"
        )
