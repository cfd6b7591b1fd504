"""Objects of COCO's annotations with their masks: polygons, and run lengths of crowds. Checked before any C code sees them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from extract.datasets.label_maps import image_size, sides
from extract.datasets.listed import parsing, text
from extract.datasets.sample import DataError, Sample
from extract.datasets.truths import Truths
from store import BeyondClsError, StoreError
from store.truths import rle
from store.truths.reading import Instance

OUTLINE = 4_000_000  # pixels along a polygon, at most
BEYOND = 1.0  # how far a polygon may reach beyond its image, in sides of the image; what is beyond is cut off


class CocoInstances(Truths):
    """Objects of images.

    Args:
        classes: names in order of labels.
        file: the annotations.
        numbers: of images in that file, by id of the sample.
        label_of: category -> label.
    """

    def __init__(self, classes: Sequence[str], file: Path, numbers: Mapping[str, int], label_of: Mapping[int, int]):
        self.classes, self._file, self._numbers, self._label_of = list(classes), file, numbers, label_of

    def read(self, samples: Sequence[Sample]) -> tuple[list[Sequence[Instance]], list[str]]:
        with parsing(self._file, "images and annotations of COCO"):
            content: dict[str, Any] = json.loads(text(self._file))
            images = {int(image["id"]): image for image in content["images"]}
            of_image: dict[int, list[Any]] = {number: [] for number in images}
            for annotation in content["annotations"]:
                of_image[int(annotation["image_id"])].append(annotation)
        has_masks = any("segmentation" in annotation for annotation in content["annotations"])
        instances: list[Sequence[Instance]] = []
        problems = []
        for sample in samples:
            number = self._numbers[sample.id]
            found: list[Instance] = []
            if not sample.problem:
                try:
                    size = _size(images[number], sample)
                    found = [self._instance(one, size, has_masks) for one in of_image[number]]
                except (ValueError, StoreError) as error:
                    problems.append(f"{sample}: {error}")
            instances.append(found)
        return instances, problems

    def _instance(self, annotation: Mapping[str, Any], size: tuple[int, int], has_masks: bool) -> Instance:
        try:
            x, y, width, height = map(float, annotation["bbox"])
            counts = mask_of(annotation["segmentation"], size) if has_masks else None
            area = annotation.get("area")
            if area is None:
                area = width * height if counts is None else rle.area(counts, size)
            if not all(map(math.isfinite, (x, y, width, height, float(area)))) or min(width, height) < 0:
                raise ValueError(f"box {annotation['bbox']} (x, y, width, height) with area {area}")
            if (number := int(annotation["category_id"])) not in self._label_of:
                raise ValueError(f"category {number}, which is not among its categories")
            box, is_crowd = (x, y, x + width, y + height), bool(annotation.get("iscrowd", 0))
            return Instance(self._label_of[number], box, float(area), is_crowd, counts)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, StoreError) as error:
            problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"annotation {annotation.get('id', '')} is not as expected: {problem}") from error


def instances_in(file: Path, samples: Sequence[Sample]) -> CocoInstances:
    """Objects in a file of COCO's format whose images are called as samples are, by `file_name` without its suffix.

    Raises:
        DataError: the file is damaged, or has no entry for a sample.
    """
    with parsing(file, "images, annotations and categories of COCO"):
        content: dict[str, Any] = json.loads(text(file))
        names = {int(category["id"]): str(category["name"]) for category in content["categories"]}
        numbers = {
            PurePosixPath(image["file_name"]).with_suffix("").as_posix(): int(image["id"]) for image in content["images"]
        }
    if lacking := [sample.id for sample in samples if sample.id not in numbers]:
        raise DataError(
            f"{file} has no image for {lacking[0]!r} ({len(lacking)} in all); expected an entry for each, also without objects"
        )
    label_of = {number: label for label, number in enumerate(sorted(names))}
    return CocoInstances([names[number] for number in sorted(names)], file, numbers, label_of)


def _size(image: Mapping[str, Any], sample: Sample) -> tuple[int, int]:
    """Height and width of an image, as its annotations have them and as it is.

    Raises:
        ValueError: they differ.
    """
    actual = image_size(sample)
    stated = (image.get("height"), image.get("width"))
    if None in stated and actual is not None:
        return actual
    if not all(type(side) is int and side > 0 for side in stated):
        raise ValueError(f"its annotations have height {stated[0]!r} and width {stated[1]!r}")
    if actual is not None and stated != actual:
        raise ValueError(f"its annotations are of {sides(stated)} pixels (width x height), it has {sides(actual)}")  # type: ignore[arg-type]
    return stated  # type: ignore[return-value]


def mask_of(segmentation: Any, size: tuple[int, int]) -> bytes:
    """Run lengths of a mask: of polygons, or as they are given, compressed or not.

    Args:
        size: height and width of the image.

    Raises:
        ValueError: it is neither, or does not fit the image.
        StoreError: run lengths that do not fit the image; or faster-coco-eval is not installed.
    """
    if isinstance(segmentation, Mapping):
        return _checked_runs(segmentation, size)
    if not isinstance(segmentation, list) or not segmentation:
        raise ValueError(f"segmentation {str(segmentation)[:60]!r}, expected polygons or run lengths")
    height, width = size
    polygons = []
    for polygon in segmentation:
        points = np.array(polygon, np.float64)
        if points.ndim != 1 or len(points) < 6 or len(points) % 2:
            raise ValueError(f"a polygon of {points.size} numbers, expected x and y of three points or more")
        limits = np.array([width, height] * (len(points) // 2), np.float64)
        if not np.isfinite(points).all() or (points < -BEYOND * limits).any() or (points > (1 + BEYOND) * limits).any():
            raise ValueError(
                f"a polygon far outside of its image of {sides(size)} pixels: {points.min():g} to {points.max():g}"
            )
        if (length := np.abs(np.diff(points.reshape(-1, 2), axis=0)).max(1).sum()) > OUTLINE:  # drawing takes memory for each
            raise ValueError(f"a polygon whose outline has {length:g} pixels, expected {OUTLINE:,} at most")
        polygons.append(points)
    if all(_is_outside(points, size) for points in polygons):
        raise ValueError(f"its polygons are outside of the image of {sides(size)} pixels")
    coded = _library().frPyObjects([points.tolist() for points in polygons], height, width)
    return bytes(_library().merge(coded)["counts"])


def _is_outside(points: np.ndarray, size: tuple[int, int]) -> bool:
    """Whether all points are on the far side of one edge of the image."""
    x, y = points[::2], points[1::2]
    return bool(x.max() < 0 or y.max() < 0 or x.min() > size[1] or y.min() > size[0])


def _checked_runs(segmentation: Mapping[str, Any], size: tuple[int, int]) -> bytes:
    counts, stated = segmentation.get("counts"), segmentation.get("size")
    if stated != list(size):
        raise ValueError(f"run lengths of a mask of {stated} pixels (height, width), its image has {list(size)}")
    if isinstance(counts, str):
        compressed = counts.encode()
        rle.runs(compressed, size)
        return compressed
    if not isinstance(counts, list) or not all(type(n) is int and n >= 0 for n in counts):
        raise ValueError(f"run lengths {str(counts)[:60]}, expected counts")
    if sum(counts) != size[0] * size[1]:
        raise ValueError(f"run lengths of {sum(counts)} pixels, expected {size[0] * size[1]}")
    return bytes(_library().frPyObjects({"counts": counts, "size": list(size)}, *size)["counts"])


def _library() -> Any:
    try:
        from faster_coco_eval.core import mask
    except ImportError as error:
        raise BeyondClsError(
            "masks are drawn by faster-coco-eval, which is not installed: pip install faster-coco-eval"
        ) from error
    return mask
