"""ImageNet-1k (ILSVRC 2012), as torchvision or Kaggle lays it out, with the boxes of its localisation task."""

import csv
import io
import os
import re
from functools import cache
from pathlib import Path

from extract.datasets.form import Published
from extract.datasets.gathering import images_in
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import first_folder, lines, listed, matlab_variable, parsing, read_objects, text, unlisted
from extract.datasets.reading import made_of
from extract.datasets.sample import Box, DataError

SPLITS = ("train", "val")
PLACES = ("", "Data/CLS-LOC/", "ILSVRC/Data/CLS-LOC/")  # of the folders of images: torchvision, Kaggle
ANNOTATIONS = ("Annotations/CLS-LOC", "ILSVRC/Annotations/CLS-LOC")
MAPPING = "LOC_synset_mapping.txt"
DEVKIT = "ILSVRC2012_devkit_t12/data"
WNID = re.compile(r"n\d{8}")
ImageBoxes = list[tuple[str, tuple[float, float, float, float]]]  # WordNet id and corners x0, y0, x1, y1 of each box


def imagenet(root: Path, split: str) -> ImageSet:
    """Images `SPLIT/WNID/NAME.JPEG`, or `val/NAME.JPEG`; their ids are their names. Labels number the WordNet ids in order.

    The classes are named by LOC_synset_mapping.txt; without it they are called by their WordNet ids, which are those of the
    devkit, or of the folders. Classes of a flat `val` come from LOC_val_solution.csv, the devkit's ground truth, or
    `Annotations/CLS-LOC/val`. Boxes are those of the .csv or the Annotations: corners as published, none for many images of
    `train`.
    """
    folder = first_folder(root, *(f"{place}{split}" for place in PLACES))
    if not folder.is_dir():
        raise DataError(f"{root} has no folder {split}, nor Data/CLS-LOC/{split}; unpack the images of that split there")
    made_of(root, root / MAPPING, root / DEVKIT, folder.parent / "train")
    boxes, classes = Boxes(root, split), _class_names(root, folder)
    label_of = {wnid: label for label, wnid in enumerate(classes)}
    if any(map(WNID.fullmatch, os.listdir(folder))):
        wnid_of = {name: name.partition("/")[0] for name in sorted(images_in(folder))}
        problems = []
    else:
        wnid_of = _wordnet_id_by_file(root, folder, boxes)
        problems = unlisted(folder, wnid_of)
    samples = []
    for name, wnid in wnid_of.items():
        if wnid not in label_of:
            raise DataError(f"{folder / name} is of class {wnid!r}, which is not among the {len(classes)} classes of its lists")
        of_image = [Box(*corners, label_of.get(kind, -1)) for kind, corners in boxes.for_image(name)]
        samples.append(listed(folder, name, (label_of[wnid],), of_image, id_=Path(name).stem))
    return ImageSet(str(root), samples, list(classes.values()), problems)


class Boxes:
    """Boxes of the images of one split, from Kaggle's .csv or an XML file for each image, whichever is in `root`."""

    def __init__(self, root: Path, split: str):
        file = root / f"LOC_{split}_solution.csv"
        made_of(file)
        self.solution: dict[str, ImageBoxes] = {}
        if file.is_file():
            with parsing(file, "columns ImageId and PredictionString, of WNID x0 y0 x1 y1 for each box"):
                for row in csv.DictReader(io.StringIO(text(file)), strict=True):
                    words = row["PredictionString"].split()
                    boxes = [words[i : i + 5] for i in range(0, len(words), 5)]
                    corners = [(wnid, (float(a), float(b), float(c), float(d))) for wnid, a, b, c, d in boxes]
                    self.solution[row["ImageId"]] = corners
        self._folder = first_folder(root, *(f"{name}/{split}" for name in ANNOTATIONS))
        self.for_image = cache(self._for_image)

    def _for_image(self, name: str) -> ImageBoxes:
        """Boxes of the image at this path in its split; empty if no file has them."""
        if self.solution:
            return self.solution.get(Path(name).stem, [])
        for path in (name, Path(name).name) if self._folder.is_dir() else ():
            file = self._folder / Path(path).with_suffix(".xml")
            made_of(file)
            if file.is_file():
                return [(one.name, one.corners) for one in read_objects(file)]
        return []


def _class_names(root: Path, folder: Path) -> dict[str, str]:
    if (file := root / MAPPING).is_file():
        with parsing(file, "lines of a WordNet id and names"):
            entries = [line.split(maxsplit=1) for line in lines(file)]
            names = {wnid: name for wnid, name, *_ in entries}
    elif (root / DEVKIT).is_dir():
        names = {wnid: wnid for wnid in _wordnet_id_by_number(root).values()}
    else:
        train = folder.parent / "train"
        folders = os.listdir(train if train.is_dir() else folder)
        names = {name: name for name in folders if WNID.fullmatch(name)}
    if not names:
        raise DataError(f"no file gives the classes of {folder}; put {MAPPING} or {DEVKIT} into {root}")
    return dict(sorted(names.items()))


def _wordnet_id_by_file(root: Path, folder: Path, boxes: Boxes) -> dict[str, str]:
    """WordNet id of each image of `val` without folders of classes, by file name."""
    if boxes.solution:
        return {f"{id_}.JPEG": image[0][0] for id_, image in sorted(boxes.solution.items()) if image}
    truth = root / DEVKIT / "ILSVRC2012_validation_ground_truth.txt"
    if truth.is_file():
        wnids = _wordnet_id_by_number(root)
        with parsing(truth, "a number of a class in each line"):
            return {f"ILSVRC2012_val_{i:08d}.JPEG": wnids[int(line)] for i, line in enumerate(lines(truth), 1)}
    names = sorted(images_in(folder))
    if unknown := [name for name in names if not boxes.for_image(name)]:
        raise DataError(
            f"no file gives the class of {folder / unknown[0]}; put LOC_val_solution.csv, {DEVKIT} or "
            f"Annotations/CLS-LOC/val into {root}, or sort the images into folders of classes"
        )
    return {name: boxes.for_image(name)[0][0] for name in names}


def _wordnet_id_by_number(root: Path) -> dict[int, str]:
    """WordNet ids by the number that the devkit gives to a class; synsets that have children are not classes."""
    file = root / DEVKIT / "meta.mat"
    synsets = matlab_variable(file, "synsets")
    with parsing(file, "ILSVRC2012_ID, WNID and num_children of each synset"):
        return {int(s["ILSVRC2012_ID"]): str(s["WNID"]) for s in synsets if int(s["num_children"]) == 0}


SIGNS = (MAPPING, DEVKIT, "meta.bin", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "train/n01440764", "val/n01440764")
IMAGENET = Published(imagenet, SPLITS, SIGNS, is_made_of_states=True)
