"""A data set of birds: `lists/train.txt` and `lists/test.txt` name an image and its species on each line."""

from pathlib import Path

from extract.datasets.form import Example, Published, pictures
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import lines, listed, parsing, unlisted

SPLITS = ("train", "test")


def birds(root: Path, split: str) -> ImageSet:
    """Images `photos/NAME` in the order of the list; species in alphabetical order.

    Raises: DataError: a list is missing or damaged.
    """
    lists = {name: _listed(root / "lists" / f"{name}.txt") for name in SPLITS}
    classes = sorted({species for images in lists.values() for species in images.values()})
    samples = [listed(root / "photos", name, (classes.index(species),)) for name, species in lists[split].items()]
    return ImageSet(
        str(root), samples, classes, unlisted(root / "photos", [name for names in lists.values() for name in names])
    )


def _listed(file: Path) -> dict[str, str]:
    """Species by the name of the image."""
    with parsing(file, "IMAGE SPECIES on each line"):
        return {name: species for name, species in (line.split() for line in lines(file))}  # noqa: C416


EXAMPLE = Example(
    {
        "lists/train.txt": "2.jpg wren\n1.jpg kite\n",
        "lists/test.txt": "3.jpg kite\n",
        **pictures("photos", "1.jpg", "2.jpg", "3.jpg"),
    },
    ("kite", "wren"),
    {"train": {"2": ("wren",), "1": ("kite",)}, "test": {"3": ("kite",)}},
)
BIRDS = Published(birds, SPLITS, ("lists/train.txt",), EXAMPLE)
