"""Folders of images, and of label maps of the same names: ADE20k, CamVid, Cityscapes, COCO-Stuff, VOC, and any other images."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from extract.datasets.coco import PANOPTIC_SIGNS, SIGNS, SPLITS, instances_in
from extract.datasets.form import Published
from extract.datasets.gathering import images_in
from extract.datasets.image_set import ImageSet
from extract.datasets.label_maps import Codes, Indices, LabelMaps, read_colours, read_map, segmented
from extract.datasets.listed import first_folder, inner_folder, lines, listed, parsing, read_objects
from extract.datasets.sample import DataError, Sample
from extract.datasets.truths import Truths
from store.truths import rle
from store.truths.reading import VOID, Instance

ADE_FOLDERS = {"train": "training", "val": "validation"}  # of splits
ADE_NAMES = "objectInfo150.txt"
CAMVID_CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
# The 19 classes that are scored, by their number in the files; 0 to 33 are known, and 255 is what a tool writes for -1.
CITY_CLASSES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light", 20: "traffic sign",
    21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train",
    32: "motorcycle", 33: "bicycle",
}  # fmt: skip
CITY_KNOWN = (*range(34), 255)
CITY_IMAGE, CITY_MAP = "_leftImg8bit", "_gtFine_labelIds"  # with which names end
STUFF, STUFF_NAMES = ("stuffthingmaps", "annotations"), "labels.txt"  # folders of maps, the first that is there; classes
NAMES, COLOURS = "label-classes.txt", "label-colours.txt"  # of any other images

VOC_SPLITS = ("train", "val", "trainval")
VOC_FOLDERS = ("", "VOC2012/", "VOCdevkit/VOC2012/", "VOC2007/", "VOCdevkit/VOC2007/")
VOC_SIGNS = tuple(f"{folder}ImageSets/Segmentation" for folder in VOC_FOLDERS)
BACKGROUND = "background"
OBJECTS = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog", "horse",
    "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
BORDER = 255  # around objects: void
MOST_OBJECTS = 254  # of an image: what an index image can number


def _pair_maps(
    root: Path,
    images: Path,
    maps: Path,
    classes: Sequence[str],
    codes: Codes,
    end: str = ".png",
    marks: tuple[str, str] = ("", ""),
    objects: Path | None = None,
) -> ImageSet:
    """All images in a folder, with PNGs in another folder of the same names as label maps, and maybe with `objects`.

    `end` is that of the name of an image of which only the map is there. Before the point, names of images and of maps end in
    `marks`, without which they are ids.

    Raises:
        DataError: two images have one name, but for their endings.
    """

    def names_by_id(folder: Path, mark: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in images_in(folder):
            stem = PurePosixPath(name).with_suffix("").as_posix()
            if not stem.endswith(mark):
                continue
            other = found.setdefault(stem.removesuffix(mark), name)
            if other != name and folder == images:  # of maps only .png is read
                both = " and ".join(sorted((other, name)))
                raise DataError(f"{folder} has {both}, expected one image for each label map; remove or rename the other")
        return found

    names = names_by_id(images, marks[0])
    ids = sorted(names.keys() | names_by_id(maps, marks[1]).keys())
    samples = [listed(images, names.get(id_, f"{id_}{marks[0]}{end}"), (), id_=id_) for id_ in ids]
    label_maps = LabelMaps(classes, {id_: maps / f"{id_}{marks[1]}.png" for id_ in ids}, codes)
    truths = {"instances": instances_in(objects, samples)} if objects is not None and objects.is_file() else {}
    return segmented(str(root), samples, label_maps, truths=truths)


def ade20k(root: Path, split: str) -> ImageSet:
    """The challenge on scene parsing: `images/training`, `annotations/training`, … and `objectInfo150.txt`.

    Index i of a label map is row i of the names, 0 is void. A row has a number from 1 at the beginning, and the name behind the
    last tab.
    """
    folder = inner_folder(root, "ADEChallengeData2016")
    with parsing(folder / ADE_NAMES, "a header, then lines of number, …, name between tabs"):
        rows = [(line.split("\t")[0].strip(), re.split(r"\t+", line)[-1].strip()) for line in lines(folder / ADE_NAMES)[1:]]
        if [int(number) for number, _ in rows] != list(range(1, len(rows) + 1)) or not rows:
            raise ValueError("numbers that do not count from 1")
    images, maps = (folder / name / ADE_FOLDERS[split] for name in ("images", "annotations"))
    return _pair_maps(root, images, maps, [name for _, name in rows], Indices.counted(len(rows), first=1, void=[0]), ".jpg")


def camvid(root: Path, split: str) -> ImageSet:
    """As published with SegNet: folders `train`, … of images, `trainannot`, … of label maps; 11 classes, index 11 is void."""
    n = len(CAMVID_CLASSES)
    return _pair_maps(root, root / split, root / f"{split}annot", CAMVID_CLASSES, Indices.counted(n, void=[n]))


def cityscapes(root: Path, split: str) -> ImageSet:
    """Images by city and name: `leftImg8bit/SPLIT/CITY/*_leftImg8bit.png`, `gtFine/SPLIT/CITY/*_gtFine_labelIds.png`.

    The classes are the 19 that are scored; all others are void.
    """
    indices = Indices(dict.fromkeys(CITY_KNOWN, VOID) | {number: label for label, number in enumerate(CITY_CLASSES)})
    images, maps = root / "leftImg8bit" / split, root / "gtFine" / split
    return _pair_maps(root, images, maps, tuple(CITY_CLASSES.values()), indices, marks=(CITY_IMAGE, CITY_MAP))


def coco_stuff(root: Path, split: str) -> ImageSet:
    """Images by name, with pixel maps `stuffthingmaps/SPLIT/*.png` of things and stuff as their authors publish them.

    Index i of a map is class i + 1 of `labels.txt`, whose class 0 is `unlabeled`; 255 is void.
    """
    with parsing(root / STUFF_NAMES, "lines `NUMBER: NAME`, from `0: unlabeled` on"):
        rows = [re.fullmatch(r"(\d+)\s*:\s*(\S.*)", line, re.ASCII) for line in lines(root / STUFF_NAMES)]
        numbered = [(int(row[1]), row[2].strip()) for row in rows if row]
        in_order = [number for number, _ in numbered] == list(range(len(rows)))
        if len(numbered) < 2 or not in_order or numbered[0][1] != "unlabeled":
            raise ValueError("its numbers do not count from `0: unlabeled`")
    maps = first_folder(root, *(f"{folder}/{split}" for folder in STUFF), f"{STUFF[0]}/{split}")
    images = first_folder(root, split, f"images/{split}", split)
    return _pair_maps(root, images, maps, [name for _, name in numbered[1:]], Indices.counted(len(rows) - 1), ".jpg")


def map_folder(root: Path, split: str) -> ImageSet:
    """Images by path; a label map has the path of its image, with .png.

    With `label-classes.txt`, a name a line, values of label maps are indices from 0, and 255 is void. With
    `label-colours.txt`, they are colours: a line is `R G B NAME`, and the name `void` is none. Objects have classes of their
    own: the categories of `instances/SPLIT.json`, whose `file_name` is below `images/SPLIT`.
    """
    codes: Codes
    if (root / COLOURS).is_file():
        classes, codes = read_colours(root / COLOURS)
    else:
        classes = lines(root / NAMES)
        codes = Indices.counted(len(classes))
    images, maps = (root / name / split for name in ("images", "labels"))
    return _pair_maps(root, images, maps, classes, codes, objects=root / "instances" / f"{split}.json")


def voc(root: Path, split: str) -> ImageSet:
    """Pascal VOC's segmentation: `ImageSets/Segmentation/SPLIT.txt` names images with a label map each, and maps of objects.

    20 classes and the background, which is no label of an image. The border of objects is void.
    """
    lists = first_folder(root, *VOC_SIGNS)
    folder, names = lists.parent.parent, lines(lists / f"{split}.txt")
    samples = [listed(folder / "JPEGImages", f"{name}.jpg", (), id_=name) for name in names]
    files = {name: folder / "SegmentationClass" / f"{name}.png" for name in names}
    maps = LabelMaps((BACKGROUND, *OBJECTS), files, Indices.counted(1 + len(OBJECTS), void=[BORDER]))
    objects = Truths(OBJECTS, partial(_voc_reader, folder))
    return segmented(str(root), samples, maps, unlabelled=[0], truths={"instances": objects})


def _voc_reader(folder: Path, samples: Sequence[Sample]) -> Callable[[Sample], Sequence[Instance]]:
    return partial(_voc_instances, folder)


def _voc_instances(folder: Path, sample: Sample) -> list[Instance]:
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


ADE20K = Published(ade20k, tuple(ADE_FOLDERS), (ADE_NAMES, f"ADEChallengeData2016/{ADE_NAMES}"))
CAMVID = Published(camvid, ("train", "val", "test"), ("trainannot", "valannot", "testannot"))
CITYSCAPES = Published(cityscapes, ("train", "val"), ("gtFine/train", "gtFine/val"))  # the labels of test are secret
STUFF_SIGNS = tuple(f"{folder}/{split}" for folder in STUFF for split in SPLITS)
COCO_STUFF = Published(coco_stuff, SPLITS, STUFF_SIGNS, yields_to=(*SIGNS, *PANOPTIC_SIGNS))
MAP_FOLDER = Published(map_folder, ("train", "val", "test"), (NAMES, COLOURS))
VOC = Published(voc, VOC_SPLITS, VOC_SIGNS)
