"""COCO-Stuff: pixel maps `stuffthingmaps/SPLIT/*.png` of things and stuff, and `labels.txt`, as its authors publish them."""

import re
from pathlib import Path

from extract.datasets.coco import SIGNS as OBJECTS_SIGNS
from extract.datasets.coco import SPLITS
from extract.datasets.coco_panoptic import SIGNS as PANOPTIC_SIGNS
from extract.datasets.example_maps import index_png
from extract.datasets.form import Example, Published, pictures
from extract.datasets.gathering import images_in
from extract.datasets.image_set import ImageSet
from extract.datasets.label_codes import Indices
from extract.datasets.label_maps import LabelMaps, segmented
from extract.datasets.listed import lines, listed, parsing

FOLDERS = ("stuffthingmaps", "annotations")  # of the maps' splits, the first that is there
NAMES = "labels.txt"
UNLABELLED, VOID_INDEX = "unlabeled", 255


def coco_stuff(root: Path, split: str) -> ImageSet:
    """Images by name; index i of a map is class i + 1 of `labels.txt`, whose class 0 is `unlabeled`; 255 is void.

    Raises:
        DataError: the names are missing or damaged, or there are no images.
    """
    classes = _names(root / NAMES)
    images = next((f for f in (root / split, root / "images" / split) if f.is_dir()), root / split)
    maps = next((f for f in (root / name / split for name in FOLDERS) if f.is_dir()), root / FOLDERS[0] / split)
    by_stem = {Path(name).stem: name for name in images_in(images)}
    stems = sorted(by_stem.keys() | {Path(name).stem for name in images_in(maps)})
    samples = [listed(images, by_stem.get(stem, f"{stem}.jpg"), ()) for stem in stems]
    files = {stem: maps / f"{stem}.png" for stem in stems}
    return segmented(str(root), samples, LabelMaps(classes, files, Indices.counted(len(classes), void=[VOID_INDEX])))


def _names(file: Path) -> list[str]:
    with parsing(file, "lines `NUMBER: NAME`, from `0: unlabeled` on"):
        rows = [re.fullmatch(r"(\d+)\s*:\s*(\S.*)", line, re.ASCII) for line in lines(file)]
        numbered = [(int(row[1]), row[2].strip()) for row in rows if row]
        in_order = [number for number, _ in numbered] == list(range(len(rows)))
        if len(numbered) < 2 or not in_order or numbered[0][1] != UNLABELLED:
            raise ValueError("its numbers do not count from `0: unlabeled`")
        return [name for _, name in numbered[1:]]


EXAMPLE = Example(
    {
        NAMES: "0: unlabeled\n1: person\n2: bicycle\n3: sky-other\n",
        "stuffthingmaps/train2017/000000000009.png": index_png([2, 255, 0]),
        "stuffthingmaps/val2017/000000000139.png": index_png([1, 2]),
        **pictures("train2017", "000000000009.jpg"),
        **pictures("val2017", "000000000139.jpg"),
    },
    ("person", "bicycle", "sky-other"),
    {"train2017": {"000000000009": ("person", "sky-other")}, "val2017": {"000000000139": ("bicycle", "sky-other")}},
    truths=("segmentation",),
)
SIGNS = tuple(f"{folder}/{split}" for folder in FOLDERS for split in SPLITS)
COCO_STUFF = Published(coco_stuff, SPLITS, SIGNS, EXAMPLE, yields_to=(*OBJECTS_SIGNS, *PANOPTIC_SIGNS))
