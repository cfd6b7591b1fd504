"""Truths of all images as arrays without an image axis: columns of segments or instances, one image after the other."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np


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
        crowd: whether it stands for several objects that are not told apart.
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
    """Truths of all images.

    Attributes:
        name: `segmentation` or `instances`.
        arrays: by the last part of their names; none without a row, as Zarr has no such arrays.
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
    first, segments = _joined(images)
    return TruthColumns("segmentation", _with_rows({"first": first, **_labels(segments), **_masks(segments)}))


def instance_columns(images: Iterable[Sequence[Instance]]) -> TruthColumns:
    """Instances of all images, in order of rows; all of them have masks, or none has."""
    first, instances = _joined(images)
    has_masks = {one.counts is not None for one in instances}
    assert len(has_masks) < 2, "some instances have masks, others have none"
    columns = {
        "first": first,
        **_labels(instances),
        "box": np.array([one.box for one in instances], np.float32).reshape(-1, 4),
        "area": np.array([one.area for one in instances], np.float32),
        "crowd": np.array([one.crowd for one in instances], np.uint8),
        **({} if has_masks == {False} else _masks(instances)),
    }
    return TruthColumns("instances", _with_rows(columns))


def _joined(images: Iterable[Sequence[Item]]) -> tuple[np.ndarray, list[Item]]:
    """Where the items of each image begin, and their number; and all items."""
    items: list[Item] = []
    first = [0]
    for one in images:
        items += one
        first.append(len(items))
    return np.array(first, np.int64), items


def _labels(items: Sequence[Segment] | Sequence[Instance]) -> dict[str, np.ndarray]:
    return {"label": np.array([one.label for one in items], np.int32)}


def _masks(items: Sequence[Segment] | Sequence[Instance]) -> dict[str, np.ndarray]:
    counts = [one.counts or b"" for one in items]
    start = np.array([0, *accumulate(map(len, counts))], np.int64)
    return {"start": start, "counts": np.frombuffer(b"".join(counts), np.uint8)}


def _with_rows(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values for name, values in columns.items() if len(values)}
