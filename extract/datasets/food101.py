"""Food-101: `meta/train.json` and `meta/test.json` name the images of each class."""

import json
from pathlib import Path

from extract.datasets.form import Example, Published, pictures
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import inner_folder, listed, parsing, text, unlisted

SPLITS = ("train", "test")


def food101(root: Path, split: str) -> ImageSet:
    """Images `images/CLASS/ID.jpg` in the order of the list; classes in alphabetical order."""
    folder = inner_folder(root, "food-101")
    lists: dict[str, dict[str, list[str]]] = {}  # paths in `images` by class
    for name in SPLITS:
        file = folder / "meta" / f"{name}.json"
        with parsing(file, '{"CLASS": ["CLASS/ID", …], …}'):
            by_class = json.loads(text(file)).items()
            lists[name] = {str(kind): [f"{image.strip()}.jpg" for image in images] for kind, images in by_class}
    classes = sorted(set().union(*lists.values()))
    samples = [
        listed(folder / "images", name, (classes.index(kind),), id_=name.removesuffix(".jpg"))
        for kind, names in lists[split].items()
        for name in names
    ]
    listed_names = [name for names in lists.values() for kind in names.values() for name in kind]
    return ImageSet(str(root), samples, classes, unlisted(folder / "images", listed_names))


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
