"""Objects of a feature set's images: boxes, and masks where they are known."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int64

from store.errors import StoreError
from store.truths.reading import Columns
from store.truths.rle import decode


@dataclass(frozen=True)
class InstancesOfImage:
    """Objects of one image, in the order of the data set.

    Attributes:
        labels: their classes.
        boxes: x0, y0, x1, y1 in pixels of the original, as published.
        areas: in pixels, as published; of the mask where the data set has none.
        crowds: whether one stands for several objects.
        counts: COCO's compressed run lengths of their masks; None where there are no masks.
        size: height and width of the image.
    """

    labels: Int64[np.ndarray, "n"]
    boxes: Float32[np.ndarray, "n 4"]
    areas: Float32[np.ndarray, "n"]
    crowds: Bool[np.ndarray, "n"]
    counts: tuple[bytes, ...] | None
    size: tuple[int, int]

    def __len__(self) -> int:
        """Number of objects."""
        return len(self.labels)

    def masks(self) -> Bool[np.ndarray, "n h w"]:
        """Their masks at the resolution of the original.

        Raises:
            StoreError: there are none, or their bytes are damaged.
        """
        if self.counts is None:
            raise StoreError("these objects have boxes, and no masks; extract a data set whose annotations have masks")
        masks = np.zeros((len(self), *self.size), bool)
        for mask, counts in zip(masks, self.counts, strict=True):
            mask[:] = decode(counts, self.size)
        return masks


class Instances:
    """Objects of the images of a feature set.

    Args:
        columns: of the set.

    Attributes:
        classes: names in order of labels.
    """

    def __init__(self, columns: Columns):
        self._columns, self.classes = columns, columns.classes

    def __len__(self) -> int:
        """Number of images."""
        return len(self._columns)

    @property
    def has_masks(self) -> bool:
        """Whether masks are known, not boxes alone."""
        return self._columns.has_masks

    @cached_property
    def _boxes(self) -> np.ndarray:
        return self._columns.whole("box", (4,))

    @cached_property
    def _areas(self) -> np.ndarray:
        return self._columns.whole("area")

    @cached_property
    def _crowds(self) -> np.ndarray:
        return self._columns.whole("crowd", (), "uint8").astype(bool)

    def of(self, row: int) -> InstancesOfImage:
        """Objects of one image.

        Raises:
            StoreError: no such row, or its bytes are damaged.
        """
        items = self._columns.items(row)
        return InstancesOfImage(
            self._columns.label[items].astype(np.int64),
            self._boxes[items],
            self._areas[items],
            self._crowds[items],
            self._columns.counts(items) if self.has_masks else None,
            self._columns.size(row),
        )
