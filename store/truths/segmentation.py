"""Label maps of a feature set."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int16

from store.format.array import ArrayReader
from store.truths.reading import Columns
from store.truths.rle import draw

VOID = -1  # in label maps: pixels that no class was given to


class Segmentation:
    """Label maps of the images of a feature set, at the resolution of the originals.

    Args:
        columns: of the set.
        array: gives an array of the set by its name.

    Attributes:
        classes: names in order of labels.
    """

    def __init__(self, columns: Columns, array: Callable[[str], ArrayReader]):
        self._columns, self._array, self.classes = columns, array, columns.classes

    def __len__(self) -> int:
        """Number of images."""
        return len(self._columns)

    def size(self, row: int) -> tuple[int, int]:
        """Height and width of an image."""
        return self._columns.size(row)

    def label_map(self, row: int) -> Int16[np.ndarray, "h w"]:
        """The class of each pixel of an image, -1 where it is void. Empty for an image that could not be read.

        Raises:
            StoreError: no such row, or its bytes are damaged.
        """
        items = self._columns.items(row)
        drawn = np.full(self.size(row)[::-1], VOID, np.int16)  # [w, h]: run lengths go down the columns
        for label, counts in zip(self._columns.label[items].tolist(), self._columns.counts(items), strict=True):
            draw(counts, label, drawn)
        return drawn.T

    def present(self, row: int) -> list[int]:
        """Classes that an image shows, ascending."""
        return sorted(self._columns.label[self._columns.items(row)].tolist())

    def patch_labels(self, view: int = 0) -> Int16[np.ndarray, "N T"]:
        """The most frequent label of each patch's pixels, as a view shows them; -1 where most are void.

        Raises:
            StoreError: the set has no such view.
        """
        return self._array(f"images/patch_label/view{view}").all()
