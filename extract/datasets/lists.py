"""Data sets whose lists name the images: CUB-200-2011, Food-101, Oxford-IIIT Pets, Stanford Cars and NUS-WIDE. The first four
may lie in the folder that their archive makes, or be that folder.
"""

import json
from pathlib import Path, PureWindowsPath

from extract.datasets.form import Published
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import first_folder, inner_folder, lines, listed, matlab_variable, parsing, text, unlisted
from extract.datasets.sample import Box, DataError

IN_TRAIN = {"train": "1", "test": "0"}  # of CUB's images
NUS_SPLITS = ("train", "test")
CAR_LISTS = {"train": "devkit/cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}


def cub(root: Path, split: str) -> ImageSet:
    """Images `images/CLASS/NAME.jpg` in the order of images.txt, one of five lists of `ID VALUES…`.

    There is a box around each bird: x, y, width, height there.
    """
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
            if part[number] == IN_TRAIN[split]:
                label = label_of[labels[number]]
                x, y, width, height = map(float, boxes[number].split())
                samples.append(listed(folder / "images", name, (label,), [Box(x, y, x + width, y + height, label)]))
            elif part[number] not in IN_TRAIN.values():
                raise ValueError(f"train_test_split.txt has {part[number]!r} for image {number}, expected 0 or 1")
    names = [name.partition(".")[2].replace("_", " ") or name for name in classes.values()]
    return ImageSet(str(root), samples, names, unlisted(folder / "images", images.values()))


def _values_by_id(file: Path) -> dict[str, str]:
    with parsing(file, "lines of a number and values"):
        entries = [line.split(maxsplit=1) for line in lines(file)]
        by_id: dict[str, str] = dict(entries)
        if len(by_id) != len(entries):
            raise ValueError("a number appears twice")
        return by_id


def food101(root: Path, split: str) -> ImageSet:
    """Images `images/CLASS/ID.jpg` in the order of `meta/SPLIT.json`; classes in alphabetical order."""
    folder = inner_folder(root, "food-101")
    lists: dict[str, dict[str, list[str]]] = {}  # paths in `images` by class
    for name in ("train", "test"):
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


def pets(root: Path, split: str) -> ImageSet:
    """Images `images/NAME.jpg` with their breed, named after the images.

    `annotations/SPLIT.txt` holds image, breed, species, number in species. Some published images are in no list.
    """
    folder = inner_folder(root, "oxford-iiit-pet")
    lists: dict[str, list[tuple[str, int]]] = {}  # names and labels, from 0
    for name in ("trainval", "test"):
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


def stanford_cars(root: Path, split: str) -> ImageSet:
    """Images `cars_SPLIT/NAME.jpg` in the order of the list, a MATLAB file, as torchvision keeps them.

    There is a box around each car; corners count from 1, the lower right one inclusive.
    """
    folder = inner_folder(root, "stanford_cars")
    classes = [str(name) for name in matlab_variable(folder / "devkit" / "cars_meta.mat", "class_names")]
    entries = matlab_variable(folder / CAR_LISTS[split], "annotations")
    cars: list[tuple[str, int, Box]] = []
    with parsing(folder / CAR_LISTS[split], "bbox_x1, bbox_y1, bbox_x2, bbox_y2, class and fname of each image"):
        for entry in entries:
            label = int(entry["class"]) - 1
            if label < 0:
                raise ValueError("a class below 1")
            x0, y0, x1, y1 = (float(entry[f"bbox_{corner}"]) for corner in ("x1", "y1", "x2", "y2"))
            cars.append((str(entry["fname"]), label, Box(x0, y0, x1, y1, label)))
    images = folder / f"cars_{split}"
    samples = [listed(images, name, (label,), [box]) for name, label, box in cars]
    return ImageSet(str(root), samples, classes, unlisted(images, (name for name, _, _ in cars)))


def nus_wide(root: Path, split: str) -> ImageSet:
    """Images `Flickr/FOLDER/NAME.jpg` with any number of 81 concepts, none for many.

    A concept is a file of zeros and ones, with a line for each image in the list.
    """
    files = {name: root / "ImageList" / f"{name.title()}Imagelist.txt" for name in NUS_SPLITS}  # of Windows, as published
    lists = {name: [PureWindowsPath(line).as_posix() for line in lines(file)] for name, file in files.items()}
    part, names = split.title(), lists[split]
    concept_list = root / "ConceptsList" / "Concepts81.txt"
    concepts = lines(concept_list if concept_list.exists() else root / "Concepts81.txt")
    columns = []
    for concept in concepts:
        file = root / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{part}.txt"
        marks = lines(file)
        if len(marks) != len(names) or not set(marks) <= {"0", "1"}:
            odd = next(iter(set(marks) - {"0", "1"}), None)
            content = f"{len(marks)} lines" if odd is None else f"a line {odd[:40]!r}"
            raise DataError(f"{file} has {content}, expected {len(names)} lines of 0 or 1; get it again")
        columns.append(marks)
    folder = first_folder(root, "Flickr", "images")
    if not folder.is_dir():
        raise DataError(f"{root} has no images; expected a folder Flickr next to ImageList")
    labels = [tuple(label for label, marks in enumerate(columns) if marks[row] == "1") for row in range(len(names))]
    samples = [listed(folder, name, of_image) for name, of_image in zip(names, labels, strict=True)]
    listed_names = [name for names in lists.values() for name in names]
    return ImageSet(str(root), samples, concepts, unlisted(folder, listed_names), multilabel=True)


CUB = Published(cub, tuple(IN_TRAIN), ("CUB_200_2011/train_test_split.txt", "train_test_split.txt"))
FOOD101 = Published(food101, ("train", "test"), ("food-101/meta/train.json", "meta/train.json"))
PETS = Published(pets, ("trainval", "test"), ("oxford-iiit-pet/annotations/trainval.txt", "annotations/trainval.txt"))
STANFORD_CARS = Published(stanford_cars, tuple(CAR_LISTS), ("stanford_cars/devkit/cars_meta.mat", "devkit/cars_meta.mat"))
NUS_WIDE = Published(nus_wide, NUS_SPLITS, tuple(f"ImageList/{split.title()}Imagelist.txt" for split in NUS_SPLITS))
