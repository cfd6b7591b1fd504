"""Food-101: `meta/train.json` and `meta/test.json` name the images of each class."""

import json
from pathlib import Path

from extract.datasets.form import Example, Published, pictures
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import inner_folder, listed, parsing, text, unlisted

SPLITS = ("train", "test")


def food101(root: Path, split: str) -> ImageSet:
    """Images `images/CLASS/ID.jpg` in the order of the list; classes in alphabetical order.

    Raises:
        DataError: a list is missing or damaged.
    """
    folder = inner_folder(root, "food-101")
    lists = {name: _paths_by_class(folder / "meta" / f"{name}.json") for name in SPLITS}
    classes = sorted(set().union(*lists.values()))
    chosen = [(name, (label,)) for kind, names in lists[split].items() for label in [classes.index(kind)] for name in names]
    samples = [listed(folder / "images", name, labels, id_=name.removesuffix(".jpg")) for name, labels in chosen]
    listed_names = [name for names in lists.values() for kind in names.values() for name in kind]
    return ImageSet(str(root), samples, classes, unlisted(folder / "images", listed_names))


def _paths_by_class(file: Path) -> dict[str, list[str]]:
    """Paths in `images` by class."""
    with parsing(file, '{"CLASS": ["CLASS/ID", …], …}'):
        return {str(kind): [f"{name.strip()}.jpg" for name in names] for kind, names in json.loads(text(file)).items()}


EXAMPLE = Example(
    {
        "food-101/meta/train.json": '{"waffles": ["waffles/7", "waffles/1"], "apple_pie": ["apple_pie/3"]}',
        "food-101/meta/test.json": '{"apple_pie": ["apple_pie/7", "apple_pie/1"], "waffles": ["waffles/3"]}',
        **pictures("food-101/images/apple_pie", "7.jpg", "1.jpg", "3.jpg"),
        **pictures("food-101/images/waffles", "7.jpg", "1.jpg", "3.jpg"),
    },
    ("apple_pie", "waffles"),
    {
        "train": {"waffles/7": ("waffles",), "waffles/1": ("waffles",), "apple_pie/3": ("apple_pie",)},
        "test": {"apple_pie/7": ("apple_pie",), "apple_pie/1": ("apple_pie",), "waffles/3": ("waffles",)},
    },
)
FOOD101 = Published(food101, SPLITS, ("food-101/meta/train.json", "meta/train.json"), EXAMPLE)
