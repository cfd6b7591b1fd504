"""Which class a label means, and what is said of the classes."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from extract.datasets import DataError, ImageSet, open_images
from extract.datasets.classes import caution_on_classes, classes_in_words
from extract.datasets.sample import Box, Sample
from tests.extract.pictures import samples, write_pictures, write_tar, write_text


def table(folder: Path, labels: Sequence[str], names: Sequence[str] = (), column: str = "label") -> ImageSet:
    """Images of a .csv with these labels; with a file of class names if there are any."""
    write_pictures(folder, *(f"{i}.jpg" for i in range(len(labels))))
    file = write_text(folder / "a.csv", f"id,path,{column}", *(f"{i},{i}.jpg,{label}" for i, label in enumerate(labels)))
    return open_images(str(file), classes=write_text(folder / "names.txt", *names) if names else None)


def labels_of(images: ImageSet) -> list[int | tuple[int, ...] | None]:
    """Of a set with one label an image the label."""
    return [sample.labels if images.multilabel else sample.label for sample in images.samples]


@pytest.mark.parametrize(
    "written",
    [
        [f"{label}.0" for label in range(12)],
        [f"{label:.18e}" for label in range(12)],  # numpy.savetxt
        [*map(str, range(10)), "1e1", "11."],
    ],
    ids=["pandas", "numpy", "mixed"],
)
def test_whole_floats_are_class_numbers(written: list[str], tmp_path: Path) -> None:
    images = table(tmp_path, written)
    assert (labels_of(images), images.classes) == (list(range(12)), None)
    assert images.digest == table(tmp_path / "integers", [*map(str, range(12))]).digest
    tar = write_tar(tmp_path / "a.tar", [{**sample, "cls": label} for sample, label in zip(samples(12), written, strict=True)])
    assert labels_of(open_images(str(tar))) == list(range(12))


@pytest.mark.parametrize(
    ("column", "written", "labels", "classes"),
    [
        *(("label", ["0.0", gap, "2.0"], [0, None, 2], None) for gap in ("", "NaN", "<NA>", "None")),  # no class
        ("label", ["5219173.0", "2084071", "12", "5219173"], [2, 1, 0, 2], ["12", "2084071", "5219173"]),  # identifiers
        ("label", ["", " "], [None, None], None),  # a set without labels
        ("label", ["cat; ape", "", "ape;ape"], [(1, 0), (), (0,)], ["ape", "cat"]),
        # Parts that are no labels, and any part in a column of single labels.
        ("labels", ['"tench, Tinca tinca"', "hot dog", "TV/a"], [(2,), (1,), (0,)], ["TV/a", "hot dog", "tench, Tinca tinca"]),
        ("labels", ["red car", "red bus", "old car"], [(2,), (1,), (0,)], ["old car", "red bus", "red car"]),
        ("label", ["cat|dog", "cat"], [1, 0], ["cat", "cat|dog"]),
    ],
)
def test_labels(column: str, written: list[str], labels: list[object], classes: list[str] | None, tmp_path: Path) -> None:
    images = table(tmp_path, written, column=column)
    assert (labels_of(images), images.classes) == (labels, classes)
    assert (images.multilabel, images.is_unlabelled) == (column == "labels" or ";" in written[0], labels == [None, None])
    lacking = [label is None and not images.is_unlabelled for label in labels]
    assert [(sample.problem or "").startswith("has no label (its column ") for sample in images.samples] == lacking


@pytest.mark.parametrize(
    "labels",
    [
        ("cat|dog", "bird"),
        ('"cat,dog"', "dog", "cat"),
        ('"1,2"', '"0"'),
        ("\"['cat', 'dog']\"", "\"['owl']\""),
        ("cat;dog|owl", "cat"),
    ],
)
def test_labels_with_another_separator_are_no_new_classes(labels: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"among the labels looks like several, which `;` separates, .* \(--classes\)$"):
        table(tmp_path, labels, column="labels")


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        (["2", "0.0", "dog"], ["dog", "cat", "owl"], [2, 0, 0]),  # words: numbers are places in their list
        (["0.0", "10", "2", "007"], ["0", "7", "10", "2"], [0, 2, 3, 1]),  # numbers: labels are what classes are called
        (["1", "-1.0", "-1", "0.5", "nan"], ["-1", "1", "0.5"], [1, 0, 0, 2, None]),  # any number
        (["dog", "cat"], ["\ufeffdog", "cat"], [0, 1]),  # of a file that Windows wrote
        (["0;2", "owl"], ["dog", "cat", "owl"], [(0, 2), (2,)]),
        (["cat|dog;24 7", "dog"], ["dog", "24 7", "cat|dog"], [(2, 1), (0,)]),  # are never split
    ],
)
def test_labels_beside_a_list_of_names(labels: list[str], names: list[str], expected: list[object], tmp_path: Path) -> None:
    images = table(tmp_path, labels, names, "labels" if "|" in labels[0] else "label")
    assert (labels_of(images), images.classes) == (expected, [name.removeprefix("\ufeff") for name in names])


@pytest.mark.parametrize(
    ("label", "names", "message"),
    [
        ("2", ["5", "7", "9"], "label '2' is the name of no class"),  # not the third
        ("none", ["dog", "cat"], r"a\.csv, row 2: label 'none' is not a number, and no class of that name is known"),
        ('"cat,dog"', ["cat", "dog"], "'cat,dog' among the labels looks like several"),
        ("3", ["dog", "cat"], "has label 3, but there are 2 class names"),
        ("crane", ["crane", "owl", "crane"], "label 'crane' is the name of two classes"),
    ],
)
def test_labels_that_a_list_of_names_does_not_explain(label: str, names: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        table(tmp_path, [label], names, "labels" if "," in label else "label")


@pytest.mark.parametrize(("label", "kind"), [("-1.0", "negative"), ("1e-1", "a fraction"), ("1" * 20, "too long")])
def test_numbers_that_no_class_has(label: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"row 3: label '{label}' is .*{kind}"):
        table(tmp_path, ["0", label, "1"])


def test_identifiers_of_tars_and_boxes(tmp_path: Path) -> None:
    content = [{**sample, "cls": label} for sample, label in zip(samples(3), (5_219_173, 2_084_071, 12), strict=True)]
    images = open_images(str(write_tar(tmp_path / "a.tar", content)))
    assert (labels_of(images), images.classes) == ([2, 1, 0], ["12", "2084071", "5219173"])
    assert images.part([1]).classes == images.classes
    boxes = (Box(0, 0, 1, 1, 5_219_173), Box(0, 0, 1, 1), Box(0, 0, 1, 1, 40_000))
    [sample] = ImageSet("a", [Sample("0", (5_219_173,), tmp_path / "0.png", 0, 9, boxes=boxes)]).samples
    assert (sample.labels, [box.label for box in sample.boxes]) == ((1,), [1, -1, 0])


@pytest.mark.parametrize(
    ("labels", "column", "said"),
    [
        ("owl cat dog cat dog dog", "label", "3, first cat, last owl; owl has the fewest images, 1, dog the most, 3"),
        ("0 3 3 -", "label", "4 without names, 2 of them without .*, first 0, last 3; 1 has the fewest images, 0, 3 .*, 2"),
        ("- -", "label", "none, as no image has a label"),
    ],
)
def test_what_is_said_of_classes(labels: str, column: str, said: str, tmp_path: Path) -> None:
    images = table(tmp_path, labels.replace("-", "").split(" "), column=column)
    assert re.fullmatch(f"classes: {said}", classes_in_words(images.class_counts, images.classes is not None))
    assert caution_on_classes(images.class_counts) is None


@pytest.mark.parametrize(
    ("folders", "caution"),
    [
        *((folders, "look like splits; .* --split") for folders in ("train val", "Training_Set test_set", "train2017 val2017")),
        ("seg_train seg_test", "as in --split seg_test"),
        ("train bus", "^$"),
        ("images", "all labelled images are of one class, images;"),
    ],
)
def test_what_is_said_of_odd_classes(folders: str, caution: str, tmp_path: Path) -> None:
    write_pictures(tmp_path, *(f"{folder}/cat/{i}.jpg" for folder in folders.split() for i in range(2)))
    (tmp_path / "empty").mkdir()
    assert re.search(caution, caution_on_classes(open_images(str(tmp_path)).class_counts) or "")
