"""ADE20k as in the challenge on scene parsing: `images/training`, `annotations/training`, … and `objectInfo150.txt`."""

import re
from pathlib import Path

from extract.datasets.example_maps import index_png
from extract.datasets.form import Example, Published, pictures
from extract.datasets.gathering import images_in
from extract.datasets.image_set import ImageSet
from extract.datasets.label_codes import Indices
from extract.datasets.label_maps import LabelMaps, segmented
from extract.datasets.listed import inner_folder, lines, listed, parsing

FOLDERS = {"train": "training", "val": "validation"}  # of splits
NAMES = "objectInfo150.txt"
VOID_INDEX = 0


def ade20k(root: Path, split: str) -> ImageSet:
    """Images by name; index i of a label map is row i of the names, 0 is void.

    Raises:
        DataError: the names are missing or damaged, or there are no images.
    """
    folder = inner_folder(root, "ADEChallengeData2016")
    classes = read_names(folder / NAMES)
    images, maps = folder / "images" / FOLDERS[split], folder / "annotations" / FOLDERS[split]
    by_stem = {Path(name).stem: name for name in images_in(images)}
    stems = sorted(by_stem.keys() | {Path(name).stem for name in images_in(maps)})
    samples = [listed(images, by_stem.get(stem, f"{stem}.jpg"), ()) for stem in stems]
    files = {stem: maps / f"{stem}.png" for stem in stems}
    return segmented(str(root), samples, LabelMaps(classes, files, Indices.counted(len(classes), first=1, void=[VOID_INDEX])))


def read_names(file: Path) -> list[str]:
    """Names of classes of a table: a number from 1 at the beginning of a line, the name behind the last tab.

    Raises:
        DataError: it is missing, or not such a table.
    """
    with parsing(file, "a header, then lines of number, …, name between tabs"):
        rows = [(line.split("\t")[0].strip(), re.split(r"\t+", line)[-1].strip()) for line in lines(file)[1:]]
        if [int(number) for number, _ in rows] != list(range(1, len(rows) + 1)) or not rows:
            raise ValueError("numbers that do not count from 1")
        return [name for _, name in rows]


TABLE = "Idx\tRatio\tTrain\tVal\tStuff\tName\n1\t0.1576\t11664\t1172\t1\twall\n2\t0.1072\t6046\t612\t1\tbuilding, edifice\n"
EXAMPLE = Example(
    {
        NAMES: TABLE,
        "annotations/training/ADE_train_00000001.png": index_png([0, 2, 1]),
        "annotations/validation/ADE_val_00000001.png": index_png([2, 1]),
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
