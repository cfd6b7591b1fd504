"""Truths of all images, read image by image."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from store.errors import StoreError
from store.format.array import ArrayReader


class Columns:
    """Columns of a feature set; those that have a few bytes an item are read whole, once, and run lengths as they are needed.

    Args:
        name: `segmentation` or `instances`.
        where: their folder or address, for messages.
        arrays: all of the set, `images/size` among them.
        classes: names in order of labels.

    Attributes:
        classes: likewise.
        first: [images + 1], the first item of each image, and the number of items.
        label: [items], their classes.
        has_masks: whether there are run lengths.

    Raises:
        StoreError: the columns do not fit one another, or the set.
    """

    def __init__(self, name: str, where: str, arrays: Mapping[str, ArrayReader], classes: Sequence[str]):
        prefix = f"images/{name}/"
        self._where, self.classes = where, tuple(classes)
        self._arrays = {n.removeprefix(prefix): array for n, array in arrays.items() if n.startswith(prefix)}
        self._sizes = arrays["images/size"].all()
        self.first = self._bounds("first", len(self) + 1)
        n_items = int(self.first[-1])
        self.label = self._whole("label", n_items, (), "int32")
        self.has_masks = "start" in self._arrays
        if self.has_masks:
            self._start = self._bounds("start", n_items + 1)
            n_bytes = self._arrays["counts"].shape[0] if "counts" in self._arrays else 0
            if int(self._start[-1]) != n_bytes:
                raise self._misfit(f"start ends at {self._start[-1]}, expected the {n_bytes} bytes of counts")
        if n_items and (self.label.min() < 0 or self.label.max() >= len(self.classes)):
            raise self._misfit(f"labels {self.label.min()} to {self.label.max()} for {len(self.classes)} classes")

    def __len__(self) -> int:
        """Number of images."""
        return len(self._sizes)

    def whole(self, name: str, row: tuple[int, ...] = (), dtype: str = "float32") -> np.ndarray:
        """All of a column, [items, *row].

        Raises:
            StoreError: it does not fit the others.
        """
        return self._whole(name, len(self.label), row, dtype)

    def _whole(self, name: str, n: int, row: tuple[int, ...], dtype: str) -> np.ndarray:
        array = self._arrays.get(name)
        if array is None and n == 0:  # no array has no rows
            return np.zeros((0, *row), dtype)
        if array is None or (array.shape, array.dtype) != ((n, *row), np.dtype(dtype)):
            state = "missing" if array is None else f"{list(array.shape)} {array.dtype}"
            raise self._misfit(f"{name} is {state}, expected {[n, *row]} {dtype}")
        return array.all()

    def _bounds(self, name: str, n: int) -> np.ndarray:
        bounds = self._whole(name, n, (), "int64")
        if bounds[0] != 0 or (np.diff(bounds) < 0).any():
            raise self._misfit(f"{name} does not ascend from 0")
        return bounds

    def _misfit(self, problem: str) -> StoreError:
        return StoreError(f"{self._where} is not as extraction writes it: {problem}; extract the truths again")

    def size(self, row: int) -> tuple[int, int]:
        """Height and width of an image."""
        height, width = self._sizes[row].tolist()
        return height, width

    def items(self, row: int) -> slice:
        """Items of an image; none of one that could not be read, which has no size.

        Raises:
            StoreError: there is no such row.
        """
        if not 0 <= row < len(self):
            raise StoreError(f"{self._where}: row {row} asked for, it has rows 0 to {len(self) - 1}")
        start = int(self.first[row])
        return slice(start, int(self.first[row + 1]) if all(self.size(row)) else start)

    def counts(self, items: slice) -> tuple[bytes, ...]:
        """Run lengths of neighbouring items; no other bytes are read than those of their chunks."""
        bounds = self._start[items.start : items.stop + 1].tolist()
        begin, end = bounds[0], bounds[-1]
        content = self._arrays["counts"].stored(np.arange(begin, end)).tobytes() if end > begin else b""
        return tuple(content[start - begin : stop - begin] for start, stop in pairwise(bounds))
