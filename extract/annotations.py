"""What a data set says of its images beside their pixels: labels and boxes, as arrays of the store."""

from collections.abc import Mapping

import numpy as np

from extract.datasets import ImageSet, Sample
from store import ArrayLayout

NONE = -1  # no label; corners of boxes that are not there


def annotation_layouts(images: ImageSet, shard_rows: int) -> list[ArrayLayout]:
    """Arrays for the labels of `images`, and for their boxes if they have any."""
    n, n_boxes = len(images), images.n_boxes
    if images.multilabel:
        layouts = [ArrayLayout("images/labels", (n, len(images.classes or ())), "uint8", ("image", "class"), shard_rows)]
    else:
        layouts = [ArrayLayout("images/label", (n,), "int64", ("image",), shard_rows)]
    if n_boxes:
        layouts += [
            ArrayLayout("images/boxes", (n, n_boxes, 4), "float32", ("image", "box", "corner"), shard_rows),
            ArrayLayout("images/box_label", (n, n_boxes), "int64", ("image", "box"), shard_rows),
        ]
    return layouts


def write_annotations(arrays: Mapping[str, np.ndarray], at: int, sample: Sample) -> None:
    """Labels and boxes of one image into row `at` of the arrays above."""
    if "images/labels" in arrays:
        arrays["images/labels"][at, list(sample.labels or ())] = 1
    else:
        arrays["images/label"][at] = NONE if sample.label is None else sample.label
    if "images/boxes" in arrays:
        n = len(sample.boxes)
        arrays["images/boxes"][at, n:] = arrays["images/box_label"][at, n:] = NONE
        if n:
            arrays["images/boxes"][at, :n] = [box[:4] for box in sample.boxes]
            arrays["images/box_label"][at, :n] = [box.label for box in sample.boxes]
