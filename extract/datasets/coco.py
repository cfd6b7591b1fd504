"""COCO: objects with boxes and masks, which are checked before any C code sees them; and panoptic segments."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from extract.datasets.form import Published
from extract.datasets.image_set import ImageSet
from extract.datasets.label_maps import Codes, Colours, LabelMaps, image_size, segmented, sides
from extract.datasets.listed import first_folder, inside, listed, parsing, text, unlisted
from extract.datasets.sample import Box, DataError, Sample
from extract.datasets.truths import Truths
from store import StoreError
from store.truths import rle
from store.truths.reading import VOID, Instance

SPLITS = ("train2017", "val2017", "train2014", "val2014")
EXPECTED = "images, annotations and categories of COCO"
OUTLINE = 4_000_000  # pixels along a polygon, at most
BEYOND = 1.0  # how far a polygon may reach beyond its image, in sides of the image; what is beyond is cut off


class Annotations:
    """What a file of annotations holds.

    Attributes:
        classes: names of the categories by ascending number.
        images: file names by number, ascending.
    """

    def __init__(self, file: Path):
        self.content: dict[str, Any] = json.loads(text(file))
        names = {int(category["id"]): str(category["name"]) for category in self.content["categories"]}
        self.classes, self.label_of = [names[number] for number in sorted(names)], {n: i for i, n in enumerate(sorted(names))}
        self.images = dict(sorted((int(image["id"]), str(image["file_name"])) for image in self.content["images"]))

    def label(self, of: Mapping[str, Any], what: str) -> int:
        """The class of an annotation or segment."""
        if of["category_id"] not in self.label_of:
            raise ValueError(f"{what} is of category {of['category_id']}, which is not among its categories")
        return self.label_of[of["category_id"]]


def coco(root: Path, split: str) -> ImageSet:
    """`annotations/instances_SPLIT.json` and a folder of images of the split's name, by ascending number; their labels are the
    categories of their objects, crowds included, by ascending number.

    Some images have no object. Boxes are x, y, width, height in the file. Masks are read if they are asked for.
    """
    file = root / "annotations" / f"instances_{split}.json"
    with parsing(file, EXPECTED):
        annotations = Annotations(file)
        objects: dict[int, list[Box]] = {number: [] for number in annotations.images}
        for annotation in annotations.content["annotations"]:
            x, y, width, height = map(float, annotation["bbox"])
            box = Box(x, y, x + width, y + height, annotations.label(annotation, "an annotation"))
            objects[annotation["image_id"]].append(box)
    samples = [
        listed(root / split, name, tuple(sorted({box.label for box in objects[number]})), objects[number])
        for number, name in annotations.images.items()
    ]
    numbers = {sample.id: number for sample, number in zip(samples, annotations.images, strict=True)}
    truths = {"instances": Truths(annotations.classes, partial(reader, file, numbers, annotations.label_of))}
    problems = unlisted(root / split, annotations.images.values())
    return ImageSet(str(root), samples, annotations.classes, problems, multilabel=True, truths=truths, usual_truths=())


def reader(
    file: Path, numbers: Mapping[str, int], label_of: Mapping[int, int], samples: Sequence[Sample]
) -> Callable[[Sample], Sequence[Instance]]:
    """Of objects in a file; `numbers` of images there by id of the sample, `label_of` a category."""
    with parsing(file, "images and annotations of COCO"):
        content: dict[str, Any] = json.loads(text(file))
        images = {int(image["id"]): image for image in content["images"]}
        of_image: dict[int, list[Any]] = {number: [] for number in images}
        for annotation in content["annotations"]:
            of_image[int(annotation["image_id"])].append(annotation)
    has_masks = any("segmentation" in annotation for annotation in content["annotations"])

    def instances(sample: Sample) -> list[Instance]:
        number = numbers[sample.id]
        size = _image_size(images[number], sample)
        return [_instance(one, label_of, size, has_masks) for one in of_image[number]]

    return instances


def _instance(annotation: Mapping[str, Any], label_of: Mapping[int, int], size: tuple[int, int], has_masks: bool) -> Instance:
    try:
        x, y, width, height = map(float, annotation["bbox"])
        counts = mask_of(annotation["segmentation"], size) if has_masks else None
        area = annotation.get("area")
        if area is None:
            area = width * height if counts is None else rle.area(counts, size)
        if not all(map(math.isfinite, (x, y, width, height, float(area)))) or min(width, height) < 0:
            raise ValueError(f"box {annotation['bbox']} (x, y, width, height) with area {area}")
        if (number := int(annotation["category_id"])) not in label_of:
            raise ValueError(f"category {number}, which is not among its categories")
        box, is_crowd = (x, y, x + width, y + height), bool(annotation.get("iscrowd", 0))
        return Instance(label_of[number], box, float(area), is_crowd, counts)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, StoreError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"annotation {annotation.get('id', '')} is not as expected: {problem}") from error


def instances_in(file: Path, samples: Sequence[Sample]) -> Truths:
    """Objects in a file of COCO's format whose images are called as samples are, by `file_name` without its suffix."""
    with parsing(file, EXPECTED):
        annotations = Annotations(file)
    numbers = {PurePosixPath(name).with_suffix("").as_posix(): number for number, name in annotations.images.items()}
    if lacking := [sample.id for sample in samples if sample.id not in numbers]:
        raise DataError(f"{file} has no image for {lacking[0]!r} ({len(lacking)} in all); expected an entry for each")
    return Truths(annotations.classes, partial(reader, file, numbers, annotations.label_of))


def _image_size(image: Mapping[str, Any], sample: Sample) -> tuple[int, int]:
    """Height and width of an image, as its annotations have them and as it is; ValueError where they differ."""
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
    """Run lengths of a mask: of polygons, or as they are given, compressed or not; of an image of this height and width, which
    they must fit: else a ValueError, or of run lengths a StoreError.
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
            raise ValueError(f"a polygon far outside of its image, {sides(size)} pixels: {points.min():g} to {points.max():g}")
        if (length := np.abs(np.diff(points.reshape(-1, 2), axis=0)).max(1).sum()) > OUTLINE:  # drawing takes memory for each
            raise ValueError(f"a polygon whose outline has {length:g} pixels, expected {OUTLINE:,} at most")
        polygons.append(points)
    # All points of each are on the far side of one edge of the image.
    if all(p.max(0).min() < 0 or (p.min(0) > (width, height)).any() for p in (q.reshape(-1, 2) for q in polygons)):
        raise ValueError(f"its polygons are outside of the image of {sides(size)} pixels")
    coded = rle.library().frPyObjects([points.tolist() for points in polygons], height, width)
    return bytes(rle.library().merge(coded)["counts"])


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
    return bytes(rle.library().frPyObjects({"counts": counts, "size": list(size)}, *size)["counts"])


def coco_panoptic(root: Path, split: str) -> ImageSet:
    """Images by ascending number, with things and stuff as one label map; classes by ascending number of the category.

    `annotations/panoptic_SPLIT.json` and a folder of PNGs of the same name: a pixel R, G, B belongs to the segment
    R + 256 G + 65536 B of its image, 0 to none.
    """
    file = root / "annotations" / f"panoptic_{split}.json"
    folder = first_folder(root, f"annotations/panoptic_{split}", f"panoptic_{split}", "")
    files: dict[str, Path] = {}
    codes: dict[str, Codes] = {}
    with parsing(file, "images, annotations with segments_info, and categories of COCO panoptic"):
        annotations = Annotations(file)
        by_image = {int(annotation["image_id"]): annotation for annotation in annotations.content["annotations"]}
        samples = [listed(root / split, name, ()) for name in annotations.images.values()]
        for sample, number in zip(samples, annotations.images, strict=True):
            annotation = by_image.get(number, {"file_name": f"{sample.id}.png", "segments_info": []})
            files[sample.id] = inside(folder, str(annotation["file_name"]))
            segments = {int(one["id"]): annotations.label(one, "a segment") for one in annotation["segments_info"]}
            codes[sample.id] = Colours({0: VOID} | segments)
    problems = unlisted(root / split, annotations.images.values())
    return segmented(str(root), samples, LabelMaps(annotations.classes, files, codes), problems=problems)


SIGNS = tuple(f"annotations/instances_{split}.json" for split in SPLITS)
PANOPTIC_SIGNS = tuple(f"annotations/panoptic_{split}.json" for split in SPLITS)
COCO = Published(coco, SPLITS, SIGNS)
COCO_PANOPTIC = Published(coco_panoptic, SPLITS, PANOPTIC_SIGNS, yields_to=SIGNS)
