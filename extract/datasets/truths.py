"""Label maps and instances that a data set has, read when they are asked for; published in pixels as files store them, they
follow where images are turned upright.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from extract.datasets.pixels import Pixels, orientation_of, readable
from extract.datasets.sample import Box, DataError, Sample
from store import StoreError
from store.truths import rle
from store.truths.reading import Instance, Segment, TruthColumns, instance_columns, segment_columns

Items = Sequence[Segment] | Sequence[Instance]  # of an image
MOST_NAMED = 10  # problems in a message
STRIPS = {"TIFF": (256, 257)}  # tags of width and height as stored, where Pillow turns the image itself


@dataclass
class Truths:
    """Truths of one kind.

    Attributes:
        classes: names in order of labels.
        reader: of some images, what gives the segments or instances of each that has no problem, and raises ValueError,
            StoreError or DataError where they are damaged, or do not fit their image.
    """

    classes: Sequence[str]
    reader: Callable[[Sequence[Sample]], Callable[[Sample], Items]]


def columns_of(name: str, truths: Truths, samples: Sequence[Sample], pixels: Pixels) -> TruthColumns:
    """Truths of all images, in pixels of the images as they are decoded, as arrays: none of an image with a problem; DataError
    where some are damaged.
    """
    reader = truths.reader(samples)
    items: list[Items] = []
    problems: list[str] = []
    for sample in samples:
        found: Items = ()
        if not sample.problem:
            try:
                found = reader(sample)
            except (ValueError, StoreError, DataError) as error:
                problems.append(f"{sample}: {error}")
        items.append(found)
    if problems:
        total = [f"({len(problems)} problems in all)"] * (len(problems) > MOST_NAMED)
        remedy = f"mend the annotations, or leave out {name}: --truths none"
        raise DataError("\n".join([*problems[:MOST_NAMED], *total, remedy]))
    if pixels.orientation == "exif":
        items = [turned_items(one, sample, pixels) for one, sample in zip(items, samples, strict=True)]
    return segment_columns(items) if name == "segmentation" else instance_columns(items)  # type: ignore[arg-type]


def turning_of(sample: Sample, pixels: Pixels) -> tuple[int, tuple[int, int]]:
    """Orientation by EXIF, and height and width as stored; 1 where annotations need not follow, or the header is damaged."""
    if pixels.orientation != "exif" or sample.problem:
        return 1, (0, 0)
    encoded = sample.read()  # a failure to read is not hidden
    try:
        with Image.open(io.BytesIO(encoded), formats=readable()[0]) as image:
            width, height = image.size
            if image.format in STRIPS:
                width, height = (int(image.tag_v2[tag]) for tag in STRIPS[image.format])  # type: ignore[attr-defined]
            return orientation_of(image), (height, width)
    except Exception:  # decoding it says what is wrong
        return 1, (0, 0)


def turn(values: Shaped[np.ndarray, "h w"], orientation: int) -> Shaped[np.ndarray, "_ _"]:
    """A map of pixels, turned as its image."""
    if orientation >= 5:
        values = values.T
    # What each orientation mirrors, once rows and columns are swapped where they are.
    vertical, horizontal = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    return values[:: -1 if vertical else 1, :: -1 if horizontal else 1]


def turned_corners(
    corners: tuple[float, float, float, float], orientation: int, size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """A box, turned as its image of this height and width as stored."""
    x0, y0, x1, y1 = corners
    height, width = size
    if orientation >= 5:
        x0, y0, x1, y1, width, height = y0, x0, y1, x1, height, width
    if orientation in (2, 3, 6, 7):
        x0, x1 = width - x1, width - x0
    if orientation in (3, 4, 7, 8):
        y0, y1 = height - y1, height - y0
    return x0, y0, x1, y1


def turned_boxes(sample: Sample, pixels: Pixels) -> Sequence[Box]:
    orientation, size = turning_of(sample, pixels) if sample.boxes else (1, (0, 0))
    if orientation == 1:
        return sample.boxes
    return [Box(*turned_corners(box[:4], orientation, size), box.label) for box in sample.boxes]


def turned_items(items: Items, sample: Sample, pixels: Pixels) -> Any:
    """Segments or instances of an image as it is decoded."""
    orientation, size = turning_of(sample, pixels) if items else (1, (0, 0))
    if orientation == 1:
        return items
    masks = [turn(rle.decode(item.counts, size), orientation) for item in items if item.counts is not None]
    coded = iter(rle.encode(np.stack(masks)) if masks else ())
    masked = [item if item.counts is None else replace(item, counts=next(coded)) for item in items]
    return [
        replace(item, box=turned_corners(item.box, orientation, size)) if isinstance(item, Instance) else item
        for item in masked
    ]
