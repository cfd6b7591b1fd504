"""ImageNet as torchvision and as Kaggle lay it out, and the boxes of its localisation task."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from extract.datasets import DataError, open_images
from extract.datasets.listed import read_objects
from tests.extract.pictures import write_file, write_pictures, write_text

TENCH, FISH, SHARK = "n01440764", "n01443537", "n01484850"
TRAIN = [f"{TENCH}/{TENCH}_10026.JPEG", f"{TENCH}/{TENCH}_9.JPEG", f"{FISH}/{FISH}_2.JPEG", f"{SHARK}/{SHARK}_1.JPEG"]
VAL = {"ILSVRC2012_val_00000001": SHARK, "ILSVRC2012_val_00000002": TENCH, "ILSVRC2012_val_00000003": SHARK}
EXPECTED = [("ILSVRC2012_val_00000001", 2), ("ILSVRC2012_val_00000002", 0), ("ILSVRC2012_val_00000003", 2)]


def train(root: Path) -> Path:
    write_pictures(root / "train", *TRAIN)
    return root


def flat_val(root: Path) -> Path:
    write_pictures(root / "val", *(f"{name}.JPEG" for name in VAL))
    return root


def mapping(root: Path) -> Path:
    names = f"{TENCH} tench, Tinca tinca", f"{FISH} goldfish", f"{SHARK} great white shark"
    return write_text(root / "LOC_synset_mapping.txt", *names)


def devkit(root: Path) -> Path:
    """Its numbers are in another order than the labels; the last synset has children."""
    data = root / "ILSVRC2012_devkit_t12" / "data"
    data.mkdir(parents=True)
    kinds = [(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children")]
    synsets = [(1, SHARK, "shark", "", 0), (2, TENCH, "tench", "", 0), (3, FISH, "fish", "", 0), (4, "n00000001", "all", "", 3)]
    savemat(data / "meta.mat", {"synsets": np.array([[s] for s in synsets], kinds)})
    write_text(data / "ILSVRC2012_validation_ground_truth.txt", "1", "2", "1")
    return root


def annotation(*objects: tuple[object, ...]) -> str:
    corners = ("xmin", "ymin", "xmax", "ymax")
    boxes = ((name, "".join(f"<{k}>{v}</{k}>" for k, v in zip(corners, box, strict=True))) for name, *box in objects)
    content = "".join(f"<object><name>{name}</name><pose>Left</pose><bndbox>{box}</bndbox></object>" for name, box in boxes)
    return f"<annotation><folder>val</folder><size><width>36</width></size>{content}</annotation>"


def solution(root: Path, *rows: str) -> Path:
    return write_text(root / "LOC_val_solution.csv", "ImageId,PredictionString", *rows)


ROWS = [
    f"ILSVRC2012_val_00000003,{SHARK} 1 2 30 40 ",  # in no order, with a space behind, as published
    f"ILSVRC2012_val_00000001,{SHARK} 5 6 7 8 {SHARK} 0 0 35 39 ",
    f"ILSVRC2012_val_00000002,{TENCH} 9 8 20 21 ",
]


class TestClasses:
    @pytest.mark.parametrize("place", ["", "ILSVRC/Data/CLS-LOC"])
    def test_names_and_places(self, place: str, tmp_path: Path) -> None:
        train(tmp_path / place)
        if place:
            mapping(tmp_path)
        images = open_images(str(tmp_path), split="train")
        labels = {f"{TENCH}_10026": 0, f"{TENCH}_9": 0, f"{FISH}_2": 1, f"{SHARK}_1": 2}
        assert [(s.id, s.label) for s in images.samples] == [*labels.items()]
        named = ["tench, Tinca tinca", "goldfish", "great white shark"]
        assert images.classes == (named if place else [TENCH, FISH, SHARK])
        assert (images.all_problems(), images.n_boxes) == ([], 0)

    @pytest.mark.parametrize("by", ["folders", "devkit", "annotations", "solution"])
    def test_val(self, by: str, tmp_path: Path) -> None:
        """By folders it has the labels of train, though no image of it is a fish."""
        if by == "folders":
            write_pictures(train(tmp_path) / "val", *(f"{wnid}/{name}.JPEG" for name, wnid in VAL.items()))
        elif by == "devkit":
            devkit(flat_val(tmp_path))
        else:
            mapping(flat_val(tmp_path))
        if by == "solution":
            solution(tmp_path, *ROWS)
        for name, wnid in VAL.items() if by == "annotations" else ():
            write_text(tmp_path / "Annotations/CLS-LOC/val" / f"{name}.xml", annotation((wnid, 1, 2, 3, 4)))
        images = open_images(str(tmp_path), split="val")
        assert sorted((s.id, s.label) for s in images.samples) == EXPECTED
        assert len(images.classes or ()) == 3
        boxes = {
            "annotations": [((1, 2, 3, 4, 2),), ((1, 2, 3, 4, 0),), ((1, 2, 3, 4, 2),)],
            "solution": [((5, 6, 7, 8, 2), (0, 0, 35, 39, 2)), ((9, 8, 20, 21, 0),), ((1, 2, 30, 40, 2),)],
        }
        assert [s.boxes for s in images.samples] == boxes.get(by, [(), (), ()])


class TestBoxes:
    def test_annotations_of_some_images_of_train(self, tmp_path: Path) -> None:
        file = tmp_path / "ILSVRC/Annotations/CLS-LOC/train" / TENCH / f"{TENCH}_9.xml"
        write_text(file, annotation((TENCH, 1, 2, 3, 4), ("n09999999", 5, 6, 7, 8)))
        images = open_images(str(train(tmp_path)), split="train")
        assert [s.boxes for s in images.samples] == [(), ((1, 2, 3, 4, 0), (5, 6, 7, 8, -1)), (), ()]
        assert images.all_problems() == []

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            *(
                (head.encode() + annotation((TENCH, 1, 2, 3, 4)).encode(), "declares a document type or entities")
                for head in ('<?xml version="1.0"?>\n<!DOCTYPE a [<!ENTITY e "x">]>', '<!doctype a SYSTEM "/etc/x">')
            ),
            # An encoding that would hide one.
            (('<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a>' + annotation()).encode("utf-16"), "is not UTF-8 text"),
            *(
                (content.encode(), "is not as expected .*: object with name and bndbox")
                for content in ("<annotation>", "<annotation><object/></annotation>", annotation((TENCH, 1, 2, 3, "x")))
            ),
        ],
    )
    def test_xml_that_is_refused(self, content: bytes, message: str, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=rf"a\.xml {message}"):
            read_objects(write_file(tmp_path / "a.xml", content))


def wrong_number(root: Path) -> None:
    write_text(devkit(flat_val(root)) / "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", "1", "9", "1")


@pytest.mark.parametrize(
    ("make", "split", "message"),
    [
        (train, "val", "has no folder val, nor Data/CLS-LOC/val"),
        (lambda root: mapping(flat_val(root)), "val", r"no file gives the class of .*00000001\.JPEG"),
        (
            lambda root: write_file(solution(flat_val(root), *ROWS).with_name("meta.bin"), b""),
            "val",
            r"no file gives the classes of .*val",
        ),
        (lambda root: solution(mapping(flat_val(root)).parent, 'a,"x'), "val", r"LOC_val_solution\.csv is not as expected"),
        (wrong_number, "val", r"ground_truth\.txt is not as expected .*a number of a class in each line"),
        (
            lambda root: write_pictures(mapping(train(root)).parent / "train", "n09999999/1.JPEG"),
            "train",
            "is of class 'n09999999', which is not among the 3 classes of its lists",
        ),
    ],
)
def test_what_lacks(make: Callable[[Path], object], split: str, message: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        open_images(str(tmp_path), "imagenet", split=split)
