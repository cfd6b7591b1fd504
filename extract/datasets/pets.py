"""Oxford-IIIT Pets: `annotations/trainval.txt` and `annotations/test.txt` hold image, breed, species, number in species."""

from pathlib import Path

from extract.datasets.form import Example, Published, pictures
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import inner_folder, lines, listed, parsing
from extract.datasets.sample import DataError

SPLITS = ("trainval", "test")


def pets(root: Path, split: str) -> ImageSet:
    """Images `images/NAME.jpg` with their breed, named after the images. Some published images are in neither list."""
    folder = inner_folder(root, "oxford-iiit-pet")
    lists: dict[str, list[tuple[str, int]]] = {}  # names and labels, from 0
    for name in SPLITS:
        file = folder / "annotations" / f"{name}.txt"
        with parsing(file, "lines like 'Abyssinian_100 1 1 1'"):
            lists[name] = [(image, int(label) - 1) for image, label, *_ in (line.split() for line in lines(file))]
            if any(label < 0 for _, label in lists[name]):
                raise ValueError("a breed below 1")
    breeds = {label: name.rpartition("_")[0] for entries in lists.values() for name, label in entries}
    if sorted(breeds) != list(range(len(breeds))):
        raise DataError(f"{folder / 'annotations'}: no image is of breed {min(set(range(max(breeds))) - set(breeds)) + 1}")
    classes = [breeds[label].replace("_", " ").title() for label in range(len(breeds))]
    return ImageSet(str(root), [listed(folder / "images", f"{n}.jpg", (label,), id_=n) for n, label in lists[split]], classes)


EXAMPLE = Example(
    {
        "oxford-iiit-pet/annotations/trainval.txt": "Abyssinian_1 1 1 1\namerican_bulldog_1 2 2 1\n",
        "oxford-iiit-pet/annotations/test.txt": "Abyssinian_2 1 1 1\n",
        **pictures("oxford-iiit-pet/images", "Abyssinian_1.jpg", "Abyssinian_2.jpg", "american_bulldog_1.jpg", "beagle_9.jpg"),
    },
    ("Abyssinian", "American Bulldog"),
    {
        "trainval": {"Abyssinian_1": ("Abyssinian",), "american_bulldog_1": ("American Bulldog",)},
        "test": {"Abyssinian_2": ("Abyssinian",)},
    },
)
SIGNS = tuple(f"{folder}annotations/trainval.txt" for folder in ("oxford-iiit-pet/", ""))
PETS = Published(pets, SPLITS, SIGNS, EXAMPLE)
