"""NUS-WIDE: 81 concepts, a file of zeros and ones for each, with a line for each image in the list."""

from pathlib import Path, PureWindowsPath

from extract.datasets.form import Published
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import first_folder, lines, listed, unlisted
from extract.datasets.sample import DataError

SPLITS = ("train", "test")


def nus_wide(root: Path, split: str) -> ImageSet:
    """Images `Flickr/FOLDER/NAME.jpg` with any number of concepts, none for many."""
    files = {name: root / "ImageList" / f"{name.title()}Imagelist.txt" for name in SPLITS}  # of Windows, as published
    lists = {name: [PureWindowsPath(line).as_posix() for line in lines(file)] for name, file in files.items()}
    part, names = split.title(), lists[split]
    concept_list = root / "ConceptsList" / "Concepts81.txt"
    concepts = lines(concept_list if concept_list.exists() else root / "Concepts81.txt")
    labels: list[list[int]] = [[] for _ in names]
    for label, concept in enumerate(concepts):
        file = root / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{part}.txt"
        marks = lines(file)
        if len(marks) != len(names) or not set(marks) <= {"0", "1"}:
            odd = next(iter(set(marks) - {"0", "1"}), None)
            content = f"{len(marks)} lines" if odd is None else f"a line {odd[:40]!r}"
            raise DataError(f"{file} has {content}, expected {len(names)} lines of 0 or 1; get it again")
        for row, mark in enumerate(marks):
            if mark == "1":
                labels[row].append(label)
    folder = first_folder(root, "Flickr", "images")
    if not folder.is_dir():
        raise DataError(f"{root} has no images; expected a folder Flickr beside ImageList")
    samples = [listed(folder, name, tuple(concepts_of)) for name, concepts_of in zip(names, labels, strict=True)]
    listed_names = [name for names in lists.values() for name in names]
    return ImageSet(str(root), samples, concepts, unlisted(folder, listed_names), multilabel=True)


NUS_WIDE = Published(nus_wide, SPLITS, tuple(f"ImageList/{split.title()}Imagelist.txt" for split in SPLITS))
