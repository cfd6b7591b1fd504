"""Boxes of ImageNet's localisation task: an XML file for each image, or Kaggle's .csv."""

import csv
import io
from functools import cache
from pathlib import Path

from extract.datasets.listed import parsing, text
from extract.datasets.opening import made_of
from extract.datasets.xml_objects import read_objects

ImageBoxes = list[tuple[str, tuple[float, float, float, float]]]  # WordNet id and corners x0, y0, x1, y1 of each box
ANNOTATIONS = ("Annotations/CLS-LOC", "ILSVRC/Annotations/CLS-LOC")


class Boxes:
    """Boxes of the images of one split, from whichever of the two is in `root`."""

    def __init__(self, root: Path, split: str):
        file = root / f"LOC_{split}_solution.csv"
        made_of(file, *(root / name / split for name in ANNOTATIONS))
        self.solution: dict[str, ImageBoxes] = read_solution(file) if file.is_file() else {}
        self._folder = next((root / name / split for name in ANNOTATIONS if (root / name / split).is_dir()), None)
        self.for_image = cache(self._for_image)

    def _for_image(self, name: str) -> ImageBoxes:
        """Boxes of the image at this path in its split; empty if no file has them."""
        if self.solution:
            return self.solution.get(Path(name).stem, [])
        for path in (name, Path(name).name) if self._folder else ():
            file = self._folder / Path(path).with_suffix(".xml")  # type: ignore[operator]
            made_of(file)
            if file.is_file():
                return [(one.name, one.corners) for one in read_objects(file)]
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
