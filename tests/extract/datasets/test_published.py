"""Data sets that come with lists of their images: what is particular to each, and damage."""

import re
import sys
from pathlib import Path

import pytest

from extract.datasets import DataError, ImageSet, open_images
from tests.extract.pictures import change, picture, write_example, write_file


def ids_and_labels(images: ImageSet) -> list[tuple[str, tuple[int, ...] | None]]:
    return [(s.id, s.labels) for s in images.samples]


@pytest.mark.parametrize("name", ["food101", "pets", "stanford-cars", "cub"])
def test_the_inner_folder_is_taken_too(name: str, tmp_path: Path) -> None:
    split = "trainval" if name == "pets" else "train"
    expected = open_images(write_example(tmp_path, name), split=split)
    (inside,) = tmp_path.iterdir()
    assert ids_and_labels(open_images(str(inside), split=split)) == ids_and_labels(expected)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("food101", "food-101/images/waffles/8.jpg"),
        ("coco", "val2017/9.jpg"),
        ("nus-wide", "Flickr/9.jpg"),
    ],
)
def test_images_that_are_in_no_list(name: str, extra: str, tmp_path: Path) -> None:
    source = write_example(tmp_path, name)
    write_file(tmp_path / extra, picture(0, "jpeg"))
    [problem] = open_images(source, split="val2017" if name == "coco" else "train").problems
    assert re.match(r"1 images in .*, e\.g\. (waffles/8|9)\.jpg", problem)


@pytest.mark.parametrize(
    ("name", "boxes"),
    [
        ("cub", [((1, 2, 4, 6, 0),), ((0, 0, 9.5, 8, 1),)]),
        ("stanford-cars", [((39, 116, 569, 375, 2),), ((5, 6, 30, 40, 0),)]),
        # Without area it is kept, as the published ones are.
        ("coco", [(), ((3, 3, 4, 4, 0),), ((1.5, 2, 11.5, 22, 2), (0, 0, 5, 0, 0), (3, 3, 4, 4, 2))]),
    ],
)
def test_boxes(name: str, boxes: list[object], tmp_path: Path) -> None:
    images = open_images(write_example(tmp_path, name), split="val2017" if name == "coco" else "train")
    assert [s.boxes for s in images.samples] == boxes
    assert images.n_boxes == max(map(len, boxes))  # type: ignore[arg-type]


PETS_TEST, FOOD_TRAIN, CUB = "oxford-iiit-pet/annotations/test.txt", "food-101/meta/train.json", "CUB_200_2011"
NUS_TEST, BEACH = "ImageList/TestImagelist.txt", "Groundtruth/TrainTestLabels/Labels_beach_Test.txt"
LABELS, INSTANCES, PANOPTIC = "labels.txt", *(f"annotations/{kind}_val2017.json" for kind in ("instances", "panoptic"))
CARS_META = "stanford_cars/devkit/cars_meta.mat"


@pytest.mark.parametrize(
    ("form", "split", "name", "old", "new", "message"),
    [
        ("food101", "train", FOOD_TRAIN, "{", "[", r"train\.json is not as expected .*CLASS/ID"),
        ("food101", "train", FOOD_TRAIN, "waffles/7", "../../7", r"'\.\./\.\./7\.jpg', which is not inside .*do not use"),
        ("pets", "test", PETS_TEST, "1 1 1", "", r"test\.txt is not as expected .*Abyssinian_100 1 1 1"),
        ("pets", "test", PETS_TEST, " 1 1 1", " 4 1 1", r"no image is of breed 3"),
        ("cub", "train", f"{CUB}/images.txt", "3 002", "4 002", r"image 3 is not in both of images\.txt and image_class_l"),
        ("cub", "train", f"{CUB}/train_test_split.txt", "2 1", "2 7", "has '7' for image 2, expected 0 or 1"),
        ("cub", "train", f"{CUB}/bounding_boxes.txt", "2 1.0 ", "2 ", "not as expected .*lists of the same images"),
        ("nus-wide", "test", NUS_TEST, "actor", "..\\..", r"which is not inside .*Flickr; do not use this list"),
        ("nus-wide", "test", BEACH, "1\n", "", r"has 0 lines, expected 1 lines of 0 or 1"),
        ("coco", "val2017", INSTANCES, 'y_id": 90', 'y_id": 91', r"an annotation is of category 91, which is not among"),
        ("coco", "val2017", INSTANCES, '"5.jpg"', '"/etc/5.jpg"', r"'/etc/5\.jpg', which is not inside"),
        ("coco-panoptic", "val2017", PANOPTIC, None, '{"images": []}', "is not as expected .*segments_info"),
        ("coco-panoptic", "val2017", PANOPTIC, 'y_id": 184}]', 'y_id": 7}]', "a segment is of category 7, which is not among"),
        ("coco-panoptic", "val2017", PANOPTIC, '"000000000003.png"', '"../../a.png"', r"\.\./a\.png', which is not inside"),
        ("coco-stuff", "val2017", LABELS, None, "1: person\n2: sky\n", r"labels\.txt is not as expected .*`0: unlabeled`"),
        ("ade20k", "val", "objectInfo150.txt", None, "Idx\tName\n2\twall\n", r"150\.txt is not .*do not count from 1"),
        ("label-maps", "train", "label-colours.txt", None, "1 2 sky", "line '1 2 sky' is no colour with a name"),
        ("label-maps", "train", "label-colours.txt", None, "1 2 300 sky", "has a value above 255"),
        ("label-maps", "train", "label-colours.txt", None, "9 9 9 a\n9 9 9 b", r"colour \[9, 9, 9\] appears twice"),
        ("label-maps", "train", "label-colours.txt", None, "0 0 0 void", "no class"),
        ("label-maps", "val", "other.txt", None, "", "has neither images nor label maps of this split; expected the folders"),
        ("stanford-cars", "test", CARS_META, None, b"no MATLAB file" * 20, "cannot be read .*: expected a MATLAB file with cl"),
    ],
)
def test_damaged_lists(form: str, split: str, name: str, old: str | None, new: str, message: str, tmp_path: Path) -> None:
    source = write_example(tmp_path, form)
    change(tmp_path / name, old, new)
    with pytest.raises(DataError, match=f"(?s){message}"):
        open_images(source, form, split=split)


def test_matlab_file_without_scipy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_example(tmp_path, "stanford-cars")
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DataError, match=r"is a MATLAB file, which needs scipy; install beyondcls\[extract\]"):
        open_images(source, split="train")


@pytest.mark.parametrize("box", ["5 5 -1 2", "nan 1 1 1", "-9 0 2 2"])
def test_a_box_that_is_none_is_a_problem_of_its_image(box: str, tmp_path: Path) -> None:
    write_example(tmp_path, "cub")
    change(tmp_path / "CUB_200_2011/bounding_boxes.txt", "1.0 2.0 3.0 4.0", box)
    [problem] = open_images(str(tmp_path), split="train").all_problems()
    assert re.search(r"has box \(.*expected x0 <= x1 and y0 <= y1", problem)


@pytest.mark.parametrize(("name", "split", "meant"), [("coco", "test", "val2017"), ("pets", "train", "trainval")])
def test_splits_that_publishers_call_otherwise(name: str, split: str, meant: str, tmp_path: Path) -> None:
    source = write_example(tmp_path, name)
    assert open_images(source, split=split).digest == open_images(source, split=meant).digest


@pytest.mark.parametrize("form", [None, "folder"])
def test_a_folder_of_splits(form: str | None, tmp_path: Path) -> None:
    for split, name in (("train", "a"), ("test", "b")):
        write_file(tmp_path / split / "cat" / f"{name}.png", picture(0))
    images = open_images(str(tmp_path), form, split="test")
    assert [sample.id for sample in images.samples] == ["cat/b"]
    assert images.digest == open_images(str(tmp_path / "test")).digest
    with pytest.raises(DataError, match=f"there is no folder 'dev' in '{tmp_path}'"):
        open_images(str(tmp_path), form, split="dev")


def test_nus_wide_without_images(tmp_path: Path) -> None:
    write_example(tmp_path, "nus-wide")
    (tmp_path / "Flickr").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="has no images; expected a folder Flickr next to ImageList"):
        open_images(str(tmp_path), split="test")
