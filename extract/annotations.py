"""What a data set says about its images beside their pixels: ids, digests, labels, boxes, and labels of patches, as arrays
of the store.

They belong to the images as they are now, features to bytes: annotations are never taken over from another feature set.
"""

from collections.abc import Sequence

import numpy as np

from extract.datasets import ImageSet
from extract.datasets.label_maps import LabelMaps
from extract.datasets.turning import turned, turning_of
from extract.encoders import Encoder
from store import ArrayLayout, FeatureStore
from store.format.layout import DIGEST, ArrayName
from store.truths.reading import VOID
from store.truths.view import patch_labels

NONE = -1  # no label; corners of padding boxes
ANNOTATIONS = ("images/id", DIGEST, "images/label", "images/labels", "images/boxes", "images/box_label")


def is_annotation(name: str) -> bool:
    """Whether an array is known without decoding an image."""
    return name in ANNOTATIONS or is_patch_label(name)


def annotation_layouts(images: ImageSet, shard_rows: int, id_width: int) -> list[ArrayLayout]:
    """Arrays for ids (of so many bytes), digests and labels of `images`, and for their boxes if they have any."""
    n, n_boxes = len(images), images.n_boxes
    layouts = [
        ArrayLayout("images/id", (n, id_width), "uint8", ("image", "byte"), shard_rows),
        ArrayLayout(DIGEST, (n, 16), "uint8", ("image", "byte"), shard_rows),
    ]
    if images.multilabel:
        layouts.append(ArrayLayout("images/labels", (n, len(images.classes or ())), "uint8", ("image", "class"), shard_rows))
    else:
        layouts.append(ArrayLayout("images/label", (n,), "int64", ("image",), shard_rows))
    if n_boxes:
        layouts.append(ArrayLayout("images/boxes", (n, n_boxes, 4), "float32", ("image", "box", "corner"), shard_rows))
        layouts.append(ArrayLayout("images/box_label", (n, n_boxes), "int64", ("image", "box"), shard_rows))
    return layouts


def annotations_of(
    images: ImageSet, encoder: Encoder, rows: Sequence[int], layouts: Sequence[ArrayLayout]
) -> dict[str, np.ndarray]:
    """The annotations of some images, as they are stored. `encoder`: whose views show labels of patches; it does not run."""
    return _beside_pixels(images, rows, layouts) | patch_labels_of(images, encoder, rows, layouts)


def _beside_pixels(images: ImageSet, rows: Sequence[int], layouts: Sequence[ArrayLayout]) -> dict[str, np.ndarray]:
    arrays = {a.name: np.zeros((len(rows), *a.shape[1:]), a.dtype) for a in layouts if a.name in ANNOTATIONS}
    for i, row in enumerate(rows):
        sample = images.samples[row]
        id_bytes = np.frombuffer(sample.id.encode(), np.uint8)
        arrays["images/id"][i, : len(id_bytes)] = id_bytes
        if DIGEST in arrays:
            arrays[DIGEST][i] = images.image_digests[row]
        if "images/labels" in arrays:
            arrays["images/labels"][i, list(sample.labels or ())] = 1
        else:
            arrays["images/label"][i] = NONE if sample.label is None else sample.label
        if "images/boxes" in arrays:
            boxes = images.boxes(row)
            n = len(boxes)
            arrays["images/boxes"][i, n:] = arrays["images/box_label"][i, n:] = NONE
            if n:
                arrays["images/boxes"][i, :n] = [box[:4] for box in boxes]
                arrays["images/box_label"][i, :n] = [box.label for box in boxes]
    return arrays


def stale_annotations(store: FeatureStore, images: ImageSet) -> list[str]:
    """Names of a feature set's annotations that are not those of its images: another label under an id, for instance.

    Labels of patches are not read: the key vouches for the label maps that they come from.
    """
    if "images" not in store.kinds:
        return []
    stored = {name: store.arrays[name] for name in ANNOTATIONS if name in store.arrays}
    shapes = {(name, array.shape) for name, array in stored.items()}
    shapes ^= {(layout.name, layout.shape) for layout in annotation_layouts(images, store.shard_rows, 0)}
    if differing := {name for name, _ in shapes} - {"images/id", DIGEST}:
        return sorted(differing)
    if images.samples.ids.nbytes.max() > stored["images/id"].shape[1]:
        return ["images/id"]
    current = _beside_pixels(images, range(len(images)), [array.layout for array in stored.values()])
    return [name for name, array in stored.items() if not np.array_equal(array.all(), current[name])]


def is_patch_label(name: str) -> bool:
    parts = ArrayName.parse(name)
    return parts.kind == "images" and parts.what == "patch_label"


def patch_labels_of(
    images: ImageSet, encoder: Encoder, rows: Sequence[int], layouts: Sequence[ArrayLayout]
) -> dict[str, np.ndarray]:
    """Labels of the patches of some images, by name; void where a map cannot be read, or an image is missing.

    Of an image that turns out to be cut when it is decoded they are those of its map; it is not valid, so nobody reads them.
    """
    views = {a.name: ArrayName.parse(a.name).view for a in layouts if is_patch_label(a.name)}
    if not views:
        return {}
    maps = images.truths["segmentation"]
    assert isinstance(maps, LabelMaps)
    height, width = encoder.config["input_size"][1:]
    arrays = {name: np.full((len(rows), encoder.grid[0] * encoder.grid[1]), VOID, np.int16) for name in views}
    for i, row in enumerate(rows):
        sample = images.samples[row]
        label_map = turned(maps.label_map(sample), turning_of(sample, images.pixels)[0])
        if sample.problem or not label_map.size:
            continue
        for name, view in views.items():
            crop = encoder.views.crop(label_map.shape[::-1], sample.id, view or 0)
            box = np.array(crop.box, np.float32)  # as the store has it
            arrays[name][i] = patch_labels(label_map, box, crop.flip, (height, width), encoder.grid)
    return arrays
