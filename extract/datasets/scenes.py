"""Scenes with a label map for each image: ADE20k, CamVid and Cityscapes."""

import re
from pathlib import Path

from extract.datasets.form import Example, Published, pictures, stripes
from extract.datasets.image_set import ImageSet
from extract.datasets.label_maps import Indices, LabelMaps, paired, segmented
from extract.datasets.listed import inner_folder, lines, parsing
from store.truths.reading import VOID

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
    of_split = ADE_FOLDERS[split]
    samples, files = paired(folder / "images" / of_split, folder / "annotations" / of_split, ".jpg")
    indices = Indices.counted(len(rows), first=1, void=[0])
    return segmented(str(root), samples, LabelMaps([name for _, name in rows], files, indices))


def camvid(root: Path, split: str) -> ImageSet:
    """As published with SegNet: folders `train`, … of images, `trainannot`, … of label maps; 11 classes, index 11 is void."""
    samples, files = paired(root / split, root / f"{split}annot")
    n = len(CAMVID_CLASSES)
    return segmented(str(root), samples, LabelMaps(CAMVID_CLASSES, files, Indices.counted(n, void=[n])))


def cityscapes(root: Path, split: str) -> ImageSet:
    """Images by city and name: `leftImg8bit/SPLIT/CITY/*_leftImg8bit.png`, `gtFine/SPLIT/CITY/*_gtFine_labelIds.png`.

    The classes are the 19 that are scored; all others are void.
    """
    samples, files = paired(root / "leftImg8bit" / split, root / "gtFine" / split, marks=(CITY_IMAGE, CITY_MAP))
    labels = dict.fromkeys(CITY_KNOWN, VOID) | {number: label for label, number in enumerate(CITY_CLASSES)}
    return segmented(str(root), samples, LabelMaps(tuple(CITY_CLASSES.values()), files, Indices(labels)))


ADE20K = Published(
    ade20k,
    tuple(ADE_FOLDERS),
    (ADE_NAMES, f"ADEChallengeData2016/{ADE_NAMES}"),
    Example(
        {
            ADE_NAMES: "Idx\tRatio\tTrain\tVal\tStuff\tName\n1\t0.1576\t11664\t1172\t1\twall\n"
            "2\t0.1072\t6046\t612\t1\tbuilding, edifice\n",
            "annotations/training/ADE_train_00000001.png": stripes(0, 2, 1),
            "annotations/validation/ADE_val_00000001.png": stripes(2, 1),
            **pictures("images", "training/ADE_train_00000001.jpg", "validation/ADE_val_00000001.jpg"),
        },
        ("wall", "building, edifice"),
        {
            "train": {"ADE_train_00000001": ("wall", "building, edifice")},
            "val": {"ADE_val_00000001": ("wall", "building, edifice")},
        },
        truths=("segmentation",),
    ),
)
CAMVID = Published(
    camvid,
    ("train", "val", "test"),
    ("trainannot", "valannot", "testannot"),
    Example(
        {
            "trainannot/0001.png": stripes(0, 3, 8),
            "testannot/0002.png": stripes(3, 11),
            "testannot/0003.png": stripes(11),
            **pictures("train", "0001.png"),
            **pictures("test", "0002.png", "0003.png"),
        },
        CAMVID_CLASSES,
        {"train": {"0001": ("sky", "road", "car")}, "test": {"0002": ("road",), "0003": ()}},
        truths=("segmentation",),
    ),
)
CITYSCAPES = Published(
    cityscapes,
    ("train", "val"),  # the labels of test are secret
    ("gtFine/train", "gtFine/val"),
    Example(
        {
            f"gtFine/train/aachen/aachen_000000_000019{CITY_MAP}.png": stripes(7, 0, 26, 33),
            f"gtFine/val/ulm/ulm_000001_000019{CITY_MAP}.png": stripes(3, 255),
            **pictures("leftImg8bit/train/aachen", f"aachen_000000_000019{CITY_IMAGE}.png"),
            **pictures("leftImg8bit/val/ulm", f"ulm_000001_000019{CITY_IMAGE}.png"),
        },
        tuple(CITY_CLASSES.values()),
        {"train": {"aachen/aachen_000000_000019": ("road", "car", "bicycle")}, "val": {"ulm/ulm_000001_000019": ()}},
        truths=("segmentation",),
    ),
)
