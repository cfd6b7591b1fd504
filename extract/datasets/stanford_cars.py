"""Stanford Cars, as torchvision keeps it: lists in MATLAB files, with a box around each car."""

from functools import partial
from pathlib import Path

from extract.datasets.form import Example, Published, matlab_file, pictures
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import inner_folder, listed, matlab_variable, parsing, unlisted
from extract.datasets.sample import Box

LISTS = {"train": "devkit/cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}


def stanford_cars(root: Path, split: str) -> ImageSet:
    """Images `cars_SPLIT/NAME.jpg` in the order of the list. Corners of boxes count from 1, the lower right one inclusive."""
    folder = inner_folder(root, "stanford_cars")
    classes = [str(name) for name in matlab_variable(folder / "devkit" / "cars_meta.mat", "class_names")]
    entries = matlab_variable(folder / LISTS[split], "annotations")
    cars: list[tuple[str, int, Box]] = []
    with parsing(folder / LISTS[split], "bbox_x1, bbox_y1, bbox_x2, bbox_y2, class and fname of each image"):
        for entry in entries:
            label = int(entry["class"]) - 1
            if label < 0:
                raise ValueError("a class below 1")
            x0, y0, x1, y1 = (float(entry[f"bbox_{corner}"]) for corner in ("x1", "y1", "x2", "y2"))
            cars.append((str(entry["fname"]), label, Box(x0, y0, x1, y1, label)))
    images = folder / f"cars_{split}"
    samples = [listed(images, name, (label,), [box]) for name, label, box in cars]
    return ImageSet(str(root), samples, classes, unlisted(images, (name for name, _, _ in cars)))


NAMES = ("AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Audi TT RS Coupe 2012")
FIELDS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
TRAIN_ROWS = [(39, 116, 569, 375, 3, "00001.jpg"), (5, 6, 30, 40, 1, "00002.jpg")]
EXAMPLE = Example(
    {
        "stanford_cars/devkit/cars_meta.mat": partial(matlab_file, "class_names", [NAMES]),
        f"stanford_cars/{LISTS['train']}": partial(matlab_file, "annotations", [TRAIN_ROWS], FIELDS),
        f"stanford_cars/{LISTS['test']}": partial(matlab_file, "annotations", [[(1, 2, 3, 4, 2, "00001.jpg")]], FIELDS),
        **pictures("stanford_cars/cars_train", "00001.jpg", "00002.jpg"),
        **pictures("stanford_cars/cars_test", "00001.jpg"),
    },
    NAMES,
    {"train": {"00001": (NAMES[2],), "00002": (NAMES[0],)}, "test": {"00001": (NAMES[1],)}},
)
SIGNS = ("stanford_cars/devkit/cars_meta.mat", "devkit/cars_meta.mat")
STANFORD_CARS = Published(stanford_cars, tuple(LISTS), SIGNS, EXAMPLE)
