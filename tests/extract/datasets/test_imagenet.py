"""ImageNet as torchvision and as Kaggle lay it out, and the boxes of its localisation task."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from extract.datasets import DataError, open_images
from extract.datasets.listed import read_objects
from tests.extract.pictures import picture, write_file, write_pictures, write_text

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
    return write_text(
        root / "LOC_synset_mapping.txt", f"{TENCH} tench, Tinca tinca", f"{FISH} goldfish", f"{SHARK} great white shark"
    )


def devkit(root: Path) -> Path:
    """Its numbers are in another order than the labels; the last synset has children."""
    data = root / "ILSVRC2012_devkit_t12" / "data"
    data.mkdir(parents=True)
    kinds = [(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children")]
    synsets = [(1, SHARK, "shark", "", 0), (2, TENCH, "tench", "", 0), (3, FISH, "fish", "", 0), (4, "n00000001", "all", "", 3)]
    savemat(data / "meta.mat", {"synsets": np.array([[s] for s in synsets], kinds)})
    write_text(data / "ILSVRC2012_validation_ground_truth.txt", "1", "2", "1")
    return root


def annotation(*objects: tuple[str, int, int, int, int]) -> str:
    boxes = "".join(
        f"<object><name>{name}</name><pose>Unspecified</pose><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1}</xmax>"
        f"<ymax>{y1}</ymax></bndbox></object>"
        for name, x0, y0, x1, y1 in objects
    )
    return f"<annotation><folder>val</folder><size><width>36</width></size>{boxes}</annotation>"


def solution(root: Path, *rows: str) -> Path:
    return write_text(root / "LOC_val_solution.csv", "ImageId,PredictionString", *rows)


ROWS = [
    f"ILSVRC2012_val_00000003,{SHARK} 1 2 30 40 ",  # in no order, with a space behind, as published
    f"ILSVRC2012_val_00000001,{SHARK} 5 6 7 8 {SHARK} 0 0 35 39 ",
    f"ILSVRC2012_val_00000002,{TENCH} 9 8 20 21 ",
]


class TestClasses:
    def test_folders_of_train(self, tmp_path: Path) -> None:
        images = open_images(str(train(tmp_path)), split="train")
        assert [(s.id, s.label) for s in images.samples] == [
            (f"{TENCH}_10026", 0), (f"{TENCH}_9", 0), (f"{FISH}_2", 1), (f"{SHARK}_1", 2)
        ]  # fmt: skip
        assert images.classes == [TENCH, FISH, SHARK]
        assert images.all_problems() == []
        assert images.n_boxes == 0

    @pytest.mark.parametrize("place", ["", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC"])
    def test_names_and_places(self, place: str, tmp_path: Path) -> None:
        train(tmp_path / place)
        mapping(tmp_path)
        images = open_images(str(tmp_path), split="train")
        assert len(images) == 4
        assert images.classes == ["tench, Tinca tinca", "goldfish", "great white shark"]

    def test_val_by_folders_has_the_labels_of_train(self, tmp_path: Path) -> None:
        train(tmp_path)
        write_pictures(tmp_path / "val", *(f"{wnid}/{name}.JPEG" for name, wnid in VAL.items()))
        images = open_images(str(tmp_path), split="val")
        assert sorted((s.id, s.label) for s in images.samples) == EXPECTED
        assert images.classes == [TENCH, FISH, SHARK], "no image of val is a fish here"

    def test_flat_val_by_the_devkit(self, tmp_path: Path) -> None:
        images = open_images(str(devkit(flat_val(tmp_path))), split="val")
        assert [(s.id, s.label) for s in images.samples] == EXPECTED
        assert images.classes == [TENCH, FISH, SHARK]

    def test_flat_val_by_annotations(self, tmp_path: Path) -> None:
        mapping(flat_val(tmp_path))
        for name, wnid in VAL.items():
            write_text(tmp_path / "Annotations/CLS-LOC/val" / f"{name}.xml", annotation((wnid, 1, 2, 3, 4)))
        images = open_images(str(tmp_path), split="val")
        assert [(s.id, s.label) for s in images.samples] == EXPECTED
        assert images.samples[1].boxes == ((1, 2, 3, 4, 0),)


class TestBoxes:
    def test_solution(self, tmp_path: Path) -> None:
        mapping(flat_val(tmp_path))
        solution(tmp_path, *ROWS)
        images = open_images(str(tmp_path), split="val")
        assert [s.boxes for s in images.samples] == [
            ((5, 6, 7, 8, 2), (0, 0, 35, 39, 2)), ((9, 8, 20, 21, 0),), ((1, 2, 30, 40, 2),)
        ]  # fmt: skip

    @pytest.mark.parametrize("place", ["Annotations/CLS-LOC/train", "ILSVRC/Annotations/CLS-LOC/train"])
    def test_annotations_of_some_images_of_train(self, place: str, tmp_path: Path) -> None:
        file = tmp_path / place / TENCH / f"{TENCH}_9.xml"
        write_text(file, annotation((TENCH, 1, 2, 3, 4), ("n09999999", 5, 6, 7, 8)))
        images = open_images(str(train(tmp_path)), split="train")
        assert [s.boxes for s in images.samples] == [(), ((1, 2, 3, 4, 0), (5, 6, 7, 8, -1)), (), ()]
        assert images.all_problems() == []

    @pytest.mark.parametrize(
        "head",
        ['<!DOCTYPE a [<!ENTITY e "x">]>', '<!doctype a SYSTEM "file:///etc/passwd">', '<?xml version="1.0"?>\n<!DOCTYPE a>'],
    )
    def test_xml_with_a_document_type_is_refused(self, head: str, tmp_path: Path) -> None:
        file = write_text(tmp_path / "a.xml", head + annotation((TENCH, 1, 2, 3, 4)))
        with pytest.raises(DataError, match=r"a\.xml declares a document type or entities, which no published annotation does"):
            read_objects(file)

    def test_xml_in_an_encoding_that_would_hide_one(self, tmp_path: Path) -> None:
        content = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a>' + annotation()
        with pytest.raises(DataError, match=r"a\.xml is not UTF-8 text"):
            read_objects(write_file(tmp_path / "a.xml", content.encode("utf-16")))

    @pytest.mark.parametrize(
        "content",
        ["", "<annotation>", "<annotation><object/></annotation>", annotation((TENCH, 1, 2, 3, "x"))],  # type: ignore[arg-type]
    )
    def test_damaged_xml(self, content: str, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"a\.xml is not as expected .*: object with name and bndbox; get it again"):
            read_objects(write_text(tmp_path / "a.xml", content))

    @pytest.mark.parametrize("row", [f"ILSVRC2012_val_00000001,{SHARK} 1 2 3", "ILSVRC2012_val_00000001", 'a,"x'])
    def test_damaged_solution(self, row: str, tmp_path: Path) -> None:
        mapping(flat_val(tmp_path))
        solution(tmp_path, row)
        with pytest.raises(DataError, match=r"LOC_val_solution\.csv is not as expected .*columns ImageId and PredictionString"):
            open_images(str(tmp_path), split="val")


class TestDamaged:
    def test_no_such_split(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has no folder val, nor Data/CLS-LOC/val; unpack the images of that split there"):
            open_images(str(train(tmp_path)), split="val")

    def test_nothing_tells_the_classes_of_val(self, tmp_path: Path) -> None:
        mapping(flat_val(tmp_path))
        with pytest.raises(DataError, match=r"no file gives the class of .*00000001\.JPEG; put LOC_val_solution\.csv, "):
            open_images(str(tmp_path), split="val")

    def test_nothing_tells_the_classes(self, tmp_path: Path) -> None:
        solution(flat_val(tmp_path), *ROWS)
        write_file(tmp_path / "meta.bin", b"")
        with pytest.raises(DataError, match=r"no file gives the classes of .*val; put LOC_synset_mapping\.txt or "):
            open_images(str(tmp_path), split="val")

    def test_image_that_the_ground_truth_lacks(self, tmp_path: Path) -> None:
        devkit(flat_val(tmp_path))
        write_file(tmp_path / "val/ILSVRC2012_val_00000004.JPEG", picture(0, "jpeg"))
        [problem] = open_images(str(tmp_path), split="val").all_problems()
        assert "are in no list, e.g. ILSVRC2012_val_00000004.JPEG" in problem

    @pytest.mark.parametrize("line", ["0", "9", "x"])
    def test_damaged_ground_truth(self, line: str, tmp_path: Path) -> None:
        devkit(flat_val(tmp_path))
        write_text(tmp_path / "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", "1", line, "1")
        with pytest.raises(DataError, match=r"ground_truth\.txt is not as expected .*a number of a class in each line"):
            open_images(str(tmp_path), split="val")

    def test_folder_of_a_class_that_is_none(self, tmp_path: Path) -> None:
        mapping(train(tmp_path))
        write_pictures(tmp_path / "train", "n09999999/n09999999_1.JPEG")
        with pytest.raises(DataError, match="is of class 'n09999999', which is not among the 3 classes of its lists"):
            open_images(str(tmp_path), split="train")
