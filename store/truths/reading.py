"""Truths of all images as arrays without an image axis: columns of segments or instances, one image after the other. They are
read image by image: label maps, and objects with boxes and, where they are known, masks.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import ClassVar, TypeVar

import numpy as np
from jaxtyping import Bool, Float32, Int16, Int64

from store.errors import StoreError
from store.format.array import ArrayReader
from store.truths.rle import decode, draw

VOID = -1  # in label maps: pixels that no class was given to


@dataclass(frozen=True)
class Segment:
    """Pixels of one class in a label map: `counts` are their run lengths (`store.truths.rle`)."""

    label: int
    counts: bytes


@dataclass(frozen=True)
class Instance:
    """One object.

    Attributes:
        label: its class.
        box: x0, y0, x1, y1 in pixels of the original.
        area: pixels, as published; of the mask where it is not.
        crowd: whether it stands for several objects that are not separated.
        counts: run lengths of its mask; None where only boxes are known.
    """

    label: int
    box: tuple[float, float, float, float]
    area: float
    crowd: bool = False
    counts: bytes | None = None


Item = TypeVar("Item", Segment, Instance)


@dataclass(frozen=True)
class TruthColumns:
    """Truths of all images: `segmentation` or `instances`, and arrays by the last part of their names; none without a row, as
    Zarr has no such arrays.
    """

    name: str
    arrays: Mapping[str, np.ndarray]

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """By the names of arrays, as a writer takes them."""
        return {f"images/{self.name}/{name}": values for name, values in self.arrays.items()}

    def digest(self, classes: Sequence[str]) -> str:
        """32 hexadecimal digits: the start of the SHA-256 of the classes, and of each array's name, dtype, shape and bytes."""
        digest = hashlib.sha256(json.dumps([self.name, *classes]).encode())
        for name, values in sorted(self.arrays.items()):
            digest.update(json.dumps([name, values.dtype.name, *values.shape]).encode())
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()[:32]


def segment_columns(images: Iterable[Sequence[Segment]]) -> TruthColumns:
    """Label maps of all images, from the segments of each in order of rows."""
    first, segments = _join(images)
    return TruthColumns("segmentation", _with_rows({"first": first} | _mask_columns(segments)))


def instance_columns(images: Iterable[Sequence[Instance]]) -> TruthColumns:
    """Instances of all images, in order of rows; all of them have masks, or none has."""
    first, instances = _join(images)
    has_masks = {one.counts is not None for one in instances}
    assert len(has_masks) < 2, "some instances have masks, others have none"
    masks = _mask_columns(instances)
    columns = {
        "first": first,
        "label": masks.pop("label"),
        "box": np.array([one.box for one in instances], np.float32).reshape(-1, 4),
        "area": np.array([one.area for one in instances], np.float32),
        "crowd": np.array([one.crowd for one in instances], np.uint8),
        **({} if has_masks == {False} else masks),
    }
    return TruthColumns("instances", _with_rows(columns))


def _join(images: Iterable[Sequence[Item]]) -> tuple[np.ndarray, list[Item]]:
    items: list[Item] = []
    first = [0]
    for one in images:
        items += one
        first.append(len(items))
    return np.array(first, np.int64), items


def _mask_columns(items: Sequence[Segment] | Sequence[Instance]) -> dict[str, np.ndarray]:
    counts = [one.counts or b"" for one in items]
    return {
        "label": np.array([one.label for one in items], np.int32),
        "start": np.array([0, *accumulate(map(len, counts))], np.int64),
        "counts": np.frombuffer(b"".join(counts), np.uint8),
    }


def _with_rows(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values for name, values in columns.items() if len(values)}


class Columns:
    """Columns of all images; those that have a few bytes an item are read whole, once, and run lengths as they are needed.
    Those that do not fit one another, or the set, are refused.

    Args:
        arrays: all of the set, `images/size` among them.
        array: gives an array of the set by its name.

    Attributes:
        classes: names in order of labels.
        has_masks: whether items have masks; objects may have boxes alone.
    """

    name: ClassVar[str]

    def __init__(
        self, where: str, arrays: Mapping[str, ArrayReader], classes: Sequence[str], array: Callable[[str], ArrayReader]
    ):
        prefix = f"images/{self.name}/"
        self._where, self.classes, self._array = where, tuple(classes), array
        self._arrays = {n.removeprefix(prefix): values for n, values in arrays.items() if n.startswith(prefix)}
        self._sizes = arrays["images/size"].all()
        self._first = self._bounds("first", len(self) + 1)  # the first item of each image, and the number of items
        n_items = int(self._first[-1])
        self._label = self._column("label", n_items, (), "int32")  # [items], their classes
        self.has_masks = "start" in self._arrays
        if self.has_masks:
            self._start = self._bounds("start", n_items + 1)
            n_bytes = self._arrays["counts"].shape[0] if "counts" in self._arrays else 0
            if int(self._start[-1]) != n_bytes:
                raise self._misfit_error(f"start ends at {self._start[-1]}, expected the {n_bytes} bytes of counts")
        if n_items and (self._label.min() < 0 or self._label.max() >= len(self.classes)):
            raise self._misfit_error(f"labels {self._label.min()} to {self._label.max()} for {len(self.classes)} classes")

    def __len__(self) -> int:
        return len(self._sizes)

    def size(self, row: int) -> tuple[int, int]:
        """Height and width of an image."""
        height, width = self._sizes[row].tolist()
        return height, width

    def _column(self, name: str, n: int, row: tuple[int, ...] = (), dtype: str = "float32") -> np.ndarray:
        """All of a column, [n, *row]; refused if it does not fit the others."""
        array = self._arrays.get(name)
        if array is None and n == 0:  # no array has no rows
            return np.zeros((0, *row), dtype)
        if array is None or (array.shape, array.dtype) != ((n, *row), np.dtype(dtype)):
            state = "missing" if array is None else f"{list(array.shape)} {array.dtype}"
            raise self._misfit_error(f"{name} is {state}, expected {[n, *row]} {dtype}")
        return array.all()

    def _bounds(self, name: str, n: int) -> np.ndarray:
        bounds = self._column(name, n, (), "int64")
        if bounds[0] != 0 or (np.diff(bounds) < 0).any():
            raise self._misfit_error(f"{name} does not ascend from 0")
        return bounds

    def _misfit_error(self, problem: str) -> StoreError:
        return StoreError(f"{self._where} is not as extraction writes it: {problem}; extract the truths again")

    def _items(self, row: int) -> slice:
        """Items of an image; none of one that could not be read, which has no size."""
        if not 0 <= row < len(self):
            raise StoreError(f"{self._where}: row {row} asked for, it has rows 0 to {len(self) - 1}")
        start = int(self._first[row])
        return slice(start, int(self._first[row + 1]) if all(self.size(row)) else start)

    def _run_lengths(self, items: slice) -> tuple[bytes, ...]:
        """Run lengths of neighbouring items; no other bytes are read than those of their chunks."""
        bounds = self._start[items.start : items.stop + 1].tolist()
        begin, end = bounds[0], bounds[-1]
        content = self._arrays["counts"].stored(np.arange(begin, end)).tobytes() if end > begin else b""
        return tuple(content[start - begin : stop - begin] for start, stop in pairwise(bounds))


class Segmentation(Columns):
    """Label maps of the images of a feature set, at the resolution of the originals."""

    name = "segmentation"

    def label_map(self, row: int) -> Int16[np.ndarray, "h w"]:
        """The class of each pixel of an image, -1 where it is void. Empty for an image that could not be read.

        Raises:
            StoreError: no such row, or its bytes are damaged.
        """
        items = self._items(row)
        drawn = np.full(self.size(row)[::-1], VOID, np.int16)  # [w, h]: run lengths go down the columns
        for label, counts in zip(self._label[items].tolist(), self._run_lengths(items), strict=True):
            draw(counts, label, drawn)
        return drawn.T

    def present(self, row: int) -> list[int]:
        """Classes that an image shows, ascending."""
        return sorted(self._label[self._items(row)].tolist())

    def patch_labels(self, view: int = 0) -> Int16[np.ndarray, "N T"]:
        """The most frequent label of each patch's pixels, as a view shows them; -1 where most are void.

        Raises:
            StoreError: the set has no such view.
        """
        return self._array(f"images/patch_label/view{view}").all()


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


class Instances(Columns):
    """Objects of the images of a feature set."""

    name = "instances"

    @cached_property
    def _objects(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n = len(self._label)
        return self._column("box", n, (4,)), self._column("area", n), self._column("crowd", n, (), "uint8").astype(bool)

    def of(self, row: int) -> InstancesOfImage:
        """Objects of one image.

        Raises:
            StoreError: no such row, or its bytes are damaged.
        """
        items, (boxes, areas, crowds) = self._items(row), self._objects
        counts = self._run_lengths(items) if self.has_masks else None
        labels = self._label[items].astype(np.int64)
        return InstancesOfImage(labels, boxes[items], areas[items], crowds[items], counts, self.size(row))
