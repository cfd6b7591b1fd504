"""Pascal VOC's segmentation: `ImageSets/Segmentation/SPLIT.txt` names images with a label map each, and maps of objects."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from extract.datasets.form import Published
from extract.datasets.image_set import ImageSet
from extract.datasets.label_maps import Indices, LabelMaps, read_map, segmented
from extract.datasets.listed import first_folder, lines, listed, read_objects
from extract.datasets.sample import Sample
from extract.datasets.truths import Truths
from store.truths import rle
from store.truths.reading import Instance

SPLITS = ("train", "val", "trainval")
FOLDERS = ("", "VOC2012/", "VOCdevkit/VOC2012/", "VOC2007/", "VOCdevkit/VOC2007/")
SIGNS = tuple(f"{folder}ImageSets/Segmentation" for folder in FOLDERS)
BACKGROUND = "background"
OBJECTS = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog", "horse",
    "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
BORDER = 255  # around objects: void
MOST_OBJECTS = 254  # of an image: what an index image can number


def voc(root: Path, split: str) -> ImageSet:
    """Images of a list; 20 classes and the background, which is no label of an image. The border of objects is void."""
    lists = first_folder(root, *SIGNS)
    folder, names = lists.parent.parent, lines(lists / f"{split}.txt")
    samples = [listed(folder / "JPEGImages", f"{name}.jpg", (), id_=name) for name in names]
    files = {name: folder / "SegmentationClass" / f"{name}.png" for name in names}
    maps = LabelMaps((BACKGROUND, *OBJECTS), files, Indices.counted(1 + len(OBJECTS), void=[BORDER]))
    objects = Truths(OBJECTS, partial(_reader, folder))
    return segmented(str(root), samples, maps, unlabelled=[0], truths={"instances": objects})


def _reader(folder: Path, samples: Sequence[Sample]) -> Callable[[Sample], Sequence[Instance]]:
    return partial(_instances, folder)


def _instances(folder: Path, sample: Sample) -> list[Instance]:
    """Objects of an image: number i in `SegmentationObject` is the i-th object of the image's XML.

    Boxes count pixels from 1 there, both ends included, and from 0 here, the end excluded. What is marked as difficult, which
    VOC does not score, is kept as a crowd.
    """
    objects = read_objects(folder / "Annotations" / f"{sample.id}.xml")
    file = folder / "SegmentationObject" / f"{sample.id}.png"
    try:
        numbers = read_map(file, Indices.counted(MOST_OBJECTS, first=1, void=[0, BORDER]))
    except ValueError as error:
        raise ValueError(f"its map of objects {file.name} {error}") from error
    if numbers.max() >= len(objects):
        raise ValueError(f"its map of objects {file.name} has number {numbers.max() + 1}, its XML {len(objects)} objects")
    masks = numbers == np.arange(len(objects))[:, None, None]
    instances = []
    for one, mask, counts in zip(objects, masks, rle.encode(masks), strict=True):
        if one.name not in OBJECTS:
            raise ValueError(f"an object is of class {one.name!r}; expected {', '.join(OBJECTS)}")
        x0, y0, x1, y1 = one.corners
        box = x0 - 1, y0 - 1, x1, y1
        instances.append(Instance(OBJECTS.index(one.name), box, float(mask.sum()), one.is_difficult, counts))
    return instances


VOC = Published(voc, SPLITS, SIGNS)
