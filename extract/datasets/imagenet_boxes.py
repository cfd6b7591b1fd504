"""Boxes of ImageNet's localisation task: an XML file for each image, or Kaggle's .csv."""

import csv
import io
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

from extract.datasets.listed import parsing, text
from extract.datasets.sample import DataError

ImageBoxes = list[tuple[str, tuple[float, float, float, float]]]  # WordNet id and corners x0, y0, x1, y1 of each box
ANNOTATIONS = ("Annotations/CLS-LOC", "ILSVRC/Annotations/CLS-LOC")


class Boxes:
    """Boxes of the images of one split, from whichever of the two is in `root`."""

    def __init__(self, root: Path, split: str):
        file = root / f"LOC_{split}_solution.csv"
        self.solution: dict[str, ImageBoxes] = read_solution(file) if file.is_file() else {}
        self._folder = next((root / name / split for name in ANNOTATIONS if (root / name / split).is_dir()), None)
        self.for_image = cache(self._for_image)

    def _for_image(self, name: str) -> ImageBoxes:
        """Boxes of the image at this path in its split; empty if no file has them."""
        if self.solution:
            return self.solution.get(Path(name).stem, [])
        for path in (name, Path(name).name) if self._folder else ():
            if (file := self._folder / Path(path).with_suffix(".xml")).is_file():  # type: ignore[operator]
                return read_xml(file)
        return []


def read_solution(file: Path) -> dict[str, ImageBoxes]:
    """Boxes by image of a .csv with columns ImageId and PredictionString: repeated `WNID x0 y0 x1 y1`."""
    with parsing(file, "columns ImageId and PredictionString, of WNID x0 y0 x1 y1 for each box"):
        try:
            rows = list(csv.DictReader(io.StringIO(text(file)), strict=True))
        except csv.Error as error:
            raise ValueError(error) from error
        solution = {}
        for row in rows:
            words = row["PredictionString"].split()
            boxes = [words[i : i + 5] for i in range(0, len(words), 5)]
            solution[row["ImageId"]] = [(wnid, (float(a), float(b), float(c), float(d))) for wnid, a, b, c, d in boxes]
        return solution


def read_xml(file: Path) -> ImageBoxes:
    """Boxes of one annotation: `object` with `name` and `bndbox` of xmin, ymin, xmax, ymax.

    A document type is refused before anything is parsed: without one, XML has no entities that could expand or read files.

    Raises:
        DataError: it is not such an annotation.
    """
    content = text(file)
    if "<!DOCTYPE" in content.upper() or "<!ENTITY" in content.upper():
        raise DataError(f"{file} declares a document type or entities, which ImageNet's annotations do not; do not use it")
    with parsing(file, "object with name and bndbox"):
        try:
            objects = ElementTree.fromstring(content).findall("object")
        except ElementTree.ParseError as error:
            raise ValueError(error) from error
        return [(_value(element, "name"), _corners(element)) for element in objects]


def _corners(element: ElementTree.Element) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = (float(_value(element, f"bndbox/{corner}")) for corner in ("xmin", "ymin", "xmax", "ymax"))
    return x0, y0, x1, y1


def _value(element: ElementTree.Element, path: str) -> str:
    if not (value := element.findtext(path)):
        raise ValueError(f"an object without {path}")
    return value.strip()
