"""ADE20k as in the challenge on scene parsing: `images/training`, `annotations/training`, … and `objectInfo150.txt`."""

import re
from pathlib import Path

from extract.datasets.form import Example, Published, pictures, stripes
from extract.datasets.image_set import ImageSet
from extract.datasets.label_maps import Indices, LabelMaps, paired, segmented
from extract.datasets.listed import inner_folder, lines, parsing

FOLDERS = {"train": "training", "val": "validation"}  # of splits
NAMES = "objectInfo150.txt"


def ade20k(root: Path, split: str) -> ImageSet:
    """Images by name; index i of a label map is row i of the names, 0 is void.

    A row of the names has a number from 1 at the beginning, and the name behind the last tab.
    """
    folder = inner_folder(root, "ADEChallengeData2016")
    with parsing(folder / NAMES, "a header, then lines of number, …, name between tabs"):
        rows = [(line.split("\t")[0].strip(), re.split(r"\t+", line)[-1].strip()) for line in lines(folder / NAMES)[1:]]
        if [int(number) for number, _ in rows] != list(range(1, len(rows) + 1)) or not rows:
            raise ValueError("numbers that do not count from 1")
    samples, files = paired(folder / "images" / FOLDERS[split], folder / "annotations" / FOLDERS[split], ".jpg")
    indices = Indices.counted(len(rows), first=1, void=[0])
    return segmented(str(root), samples, LabelMaps([name for _, name in rows], files, indices))


TABLE = "Idx\tRatio\tTrain\tVal\tStuff\tName\n1\t0.1576\t11664\t1172\t1\twall\n2\t0.1072\t6046\t612\t1\tbuilding, edifice\n"
EXAMPLE = Example(
    {
        NAMES: TABLE,
        "annotations/training/ADE_train_00000001.png": stripes(0, 2, 1),
        "annotations/validation/ADE_val_00000001.png": stripes(2, 1),
        **pictures("images/training", "ADE_train_00000001.jpg"),
        **pictures("images/validation", "ADE_val_00000001.jpg"),
    },
    ("wall", "building, edifice"),
    {
        "train": {"ADE_train_00000001": ("wall", "building, edifice")},
        "val": {"ADE_val_00000001": ("wall", "building, edifice")},
    },
    truths=("segmentation",),
)
SIGNS = (NAMES, f"ADEChallengeData2016/{NAMES}")
ADE20K = Published(ade20k, tuple(FOLDERS), SIGNS, EXAMPLE)
