"""CUB-200-2011: five lists of `ID VALUES…`, with a box around each bird."""

from pathlib import Path

from extract.datasets.form import Example, Published, pictures
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import inner_folder, lines, listed, parsing, unlisted
from extract.datasets.sample import Box, DataError

IS_TRAINING = {"train": "1", "test": "0"}


def cub(root: Path, split: str) -> ImageSet:
    """Images `images/CLASS/NAME.jpg` in the order of images.txt; boxes are x, y, width, height there."""
    folder = inner_folder(root, "CUB_200_2011")
    images, labels, part, boxes = (
        _values_by_id(folder / f"{name}.txt") for name in ("images", "image_class_labels", "train_test_split", "bounding_boxes")
    )
    classes = _values_by_id(folder / "classes.txt")
    for name, values in (("image_class_labels", labels), ("train_test_split", part), ("bounding_boxes", boxes)):
        if differ := sorted(images.keys() ^ values.keys()):
            raise DataError(f"{folder}: image {differ[0]} is not in both of images.txt and {name}.txt; get the lists again")
    label_of = {number: label for label, number in enumerate(classes)}
    samples = []
    with parsing(folder, "lists of the same images"):
        for number, name in images.items():
            if part[number] == IS_TRAINING[split]:
                label = label_of[labels[number]]
                x, y, width, height = map(float, boxes[number].split())
                samples.append(listed(folder / "images", name, (label,), [Box(x, y, x + width, y + height, label)]))
            elif part[number] not in IS_TRAINING.values():
                raise ValueError(f"train_test_split.txt has {part[number]!r} for image {number}, expected 0 or 1")
    names = [name.partition(".")[2].replace("_", " ") or name for name in classes.values()]
    return ImageSet(str(root), samples, names, unlisted(folder / "images", images.values()))


def _values_by_id(file: Path) -> dict[str, str]:
    """The values after the number at the beginning of each line."""
    with parsing(file, "lines of a number and values"):
        entries = [(number, value) for number, value in (line.split(maxsplit=1) for line in lines(file))]
        by_id = dict(entries)
        if len(by_id) != len(entries):
            raise ValueError("a number appears twice")
        return by_id


BLACK_FOOTED, LAYSAN = "001.Black_footed_Albatross", "002.Laysan_Albatross"
EXAMPLE = Example(
    {
        "CUB_200_2011/images.txt": f"1 {BLACK_FOOTED}/a.jpg\n2 {BLACK_FOOTED}/b.jpg\n3 {LAYSAN}/c.jpg\n",
        "CUB_200_2011/image_class_labels.txt": "1 1\n2 1\n3 2\n",
        "CUB_200_2011/train_test_split.txt": "1 0\n2 1\n3 1\n",
        "CUB_200_2011/bounding_boxes.txt": "1 60.0 27.0 325.0 304.0\n2 1.0 2.0 3.0 4.0\n3 0.0 0.0 9.5 8.0\n",
        "CUB_200_2011/classes.txt": f"1 {BLACK_FOOTED}\n2 {LAYSAN}\n",
        **pictures("CUB_200_2011/images", f"{BLACK_FOOTED}/a.jpg", f"{BLACK_FOOTED}/b.jpg", f"{LAYSAN}/c.jpg"),
    },
    ("Black footed Albatross", "Laysan Albatross"),
    {
        "train": {f"{BLACK_FOOTED}/b": ("Black footed Albatross",), f"{LAYSAN}/c": ("Laysan Albatross",)},
        "test": {f"{BLACK_FOOTED}/a": ("Black footed Albatross",)},
    },
)
CUB = Published(cub, tuple(IS_TRAINING), ("CUB_200_2011/train_test_split.txt", "train_test_split.txt"), EXAMPLE)
