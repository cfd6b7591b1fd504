"""Which class a label means, and what is said of the classes."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from extract.datasets import DataError, ImageSet, open_images
from extract.datasets.classes import caution_on_classes, classes_in_words
from extract.datasets.sample import Box, Sample
from tests.extract.pictures import picture, samples, write_file, write_pictures, write_tar, write_text


def table(folder: Path, labels: Sequence[str], names: Sequence[str] = (), column: str = "label") -> ImageSet:
    """Images of a .csv with these labels; with a file of class names if there are any."""
    write_pictures(folder, *(f"{i}.jpg" for i in range(len(labels))))
    file = write_text(folder / "a.csv", f"id,path,{column}", *(f"{i},{i}.jpg,{label}" for i, label in enumerate(labels)))
    return open_images(str(file), classes=write_text(folder / "names.txt", *names) if names else None)


def labels_of(images: ImageSet) -> list[int | None]:
    return [sample.label for sample in images.samples]


def words(images: ImageSet) -> str:
    return classes_in_words(images.class_counts, images.classes is not None)


@pytest.mark.parametrize(
    "written",
    [
        [f"{label}.0" for label in range(12)],
        [f"{label:.18e}" for label in range(12)],  # numpy.savetxt
        [f"{label:03}" for label in range(12)],
        [*map(str, range(10)), "1e1", "11."],
    ],
    ids=["pandas", "numpy", "zeros", "mixed"],
)
def test_whole_floats_are_class_numbers(written: list[str], tmp_path: Path) -> None:
    images = table(tmp_path, written)
    assert (labels_of(images), images.classes) == (list(range(12)), None)
    assert images.digest == table(tmp_path / "integers", [*map(str, range(12))]).digest
    tar = write_tar(tmp_path / "a.tar", [{**sample, "cls": label} for sample, label in zip(samples(12), written, strict=True)])
    assert labels_of(open_images(str(tar))) == list(range(12))


@pytest.mark.parametrize("gap", ["", "nan", "NaN", "<NA>", "None"])
def test_a_gap_among_numbers_is_no_class(gap: str, tmp_path: Path) -> None:
    images = table(tmp_path, ["0.0", gap, "2.0"])
    assert (labels_of(images), images.classes) == ([0, None, 2], None)
    [problem] = images.all_problems()
    assert "has no label" in problem


def test_words_among_numbers_make_all_of_them_names(tmp_path: Path) -> None:
    images = table(tmp_path, ["7", "A", "10", "none"])
    assert (labels_of(images), images.classes) == ([1, 2, 0, 3], ["10", "7", "A", "none"])


@pytest.mark.parametrize("label", ["-1", "-1.0", "0.5", "1e-1", "12345678901234567890"])
def test_numbers_that_no_class_has(label: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"row 3: label '{label}' is .*expected a whole number from 0.* with --classes"):
        table(tmp_path, ["0", label, "1"])


def test_a_list_of_names_allows_any_number(tmp_path: Path) -> None:
    images = table(tmp_path, ["1", "-1.0", "-1", "0.5", "nan"], ["-1", "1", "0.5"])
    assert labels_of(images) == [1, 0, 0, 2, None]


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        (["2", "0.0", "dog"], ["dog", "cat", "owl"], [2, 0, 0]),  # words: numbers are places in their list
        (["0.0", "10", "2", "007"], ["0", "7", "10", "2"], [0, 2, 3, 1]),  # numbers: labels are what classes are called
        (["7", "007"], ["007", "7"], [1, 0]),
        (["1", "A"], ["A", "B"], [1, 0]),
    ],
)
def test_labels_beside_a_list_of_names(labels: list[str], names: list[str], expected: list[int], tmp_path: Path) -> None:
    assert labels_of(table(tmp_path, labels, names)) == expected


@pytest.mark.parametrize(
    ("label", "names", "message"),
    [
        ("2", ["5", "7", "9"], "label '2' is the name of no class"),  # not the third
        ("7.0", ["007", "7"], "label '7.0' is the name of no class"),
        ("none", ["dog", "cat"], "label 'none' is not a number, and no class"),
        ("3", ["dog", "cat"], "has label 3, but there are 2 class names"),
        ("crane", ["crane", "owl", "crane"], "label 'crane' is the name of two classes"),
    ],
)
def test_labels_that_a_list_of_names_does_not_explain(label: str, names: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        table(tmp_path, [label], names)


def test_names_of_a_file_that_windows_wrote(tmp_path: Path) -> None:
    images = table(tmp_path, ["dog", "cat"], ["\ufeffdog", "cat"])
    assert (labels_of(images), images.classes) == ([0, 1], ["dog", "cat"])


class TestIdentifiers:
    LABELS = (5_219_173, 2_084_071, 5_219_173, 12)

    def test_of_a_table(self, tmp_path: Path) -> None:
        images = table(tmp_path, [f"{label}.0" for label in self.LABELS])
        assert (labels_of(images), images.classes) == ([2, 1, 2, 0], ["12", "2084071", "5219173"])

    def test_of_tars(self, tmp_path: Path) -> None:
        content = [{**sample, "cls": label} for sample, label in zip(samples(4), self.LABELS, strict=True)]
        images = open_images(str(write_tar(tmp_path / "a.tar", content)))
        assert (labels_of(images), images.classes) == ([2, 1, 2, 0], ["12", "2084071", "5219173"])
        assert images.part([1]).classes == images.classes

    def test_of_boxes_too(self, tmp_path: Path) -> None:
        file = write_file(tmp_path / "0.png", picture(0))
        boxes = (Box(0, 0, 1, 1, 5_219_173), Box(0, 0, 1, 1), Box(0, 0, 1, 1, 40_000))
        [sample] = ImageSet("a", [Sample("0", (5_219_173,), file, 0, 9, boxes=boxes)]).samples
        assert (sample.labels, [box.label for box in sample.boxes]) == ((1,), [1, -1, 0])

    def test_class_numbers_with_gaps_stay(self, tmp_path: Path) -> None:
        images = table(tmp_path, ["999", "3"])
        assert (labels_of(images), images.classes) == ([999, 3], None)

    def test_negative_ones_are_none(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has label -100; labels count from 0, and None stands for no label"):
            ImageSet("a", [Sample("0", (-100,), tmp_path / "0.png", 0, 9)])


class TestWhatIsSaid:
    def test_of_names(self, tmp_path: Path) -> None:
        images = table(tmp_path, ["owl", "cat", "dog", "cat", "dog", "dog"])
        assert words(images) == "classes: 3, first cat, last owl; owl has the fewest images, 1, dog the most, 3"
        assert caution_on_classes(images.class_counts) is None

    def test_of_numbers_with_a_gap(self, tmp_path: Path) -> None:
        images = table(tmp_path, ["0", "3", "3", ""])
        expected = "4 without names, 2 of them without an image, first 0, last 3; 1 has the fewest images, 0, 3 the most, 2"
        assert words(images) == f"classes: {expected}"

    def test_of_several_labels(self, tmp_path: Path) -> None:
        images = table(tmp_path, ["cat;dog", "dog;cat"], column="labels")
        assert words(images) == "classes: 2, first cat, last dog; 2 images each"

    def test_of_none(self, tmp_path: Path) -> None:
        images = table(tmp_path, ["", ""])
        assert words(images) == "classes: none, as no image has a label"
        assert caution_on_classes(images.class_counts) is None

    @pytest.mark.parametrize("folders", ["train val", "Training_Set test_set", "seg_train seg_test", "train2017 val2017"])
    def test_classes_that_are_splits(self, folders: str, tmp_path: Path) -> None:
        write_pictures(tmp_path, *(f"{folder}/cat/{i}.jpg" for folder in folders.split() for i in range(2)))
        (tmp_path / "empty").mkdir()
        caution = caution_on_classes(open_images(str(tmp_path)).class_counts)
        assert caution is not None
        assert f"look like splits; name one of them, as in --split {min(folders.split())}" in caution

    @pytest.mark.parametrize("folders", ["train bus", "trainer tester"])
    def test_classes_that_only_sound_like_splits(self, folders: str, tmp_path: Path) -> None:
        write_pictures(tmp_path, *(f"{folder}/0.jpg" for folder in folders.split()))
        assert caution_on_classes(open_images(str(tmp_path)).class_counts) is None

    def test_a_single_class(self, tmp_path: Path) -> None:
        write_pictures(tmp_path, "images/cat/0.jpg", "images/dog/0.jpg")
        caution = caution_on_classes(open_images(str(tmp_path)).class_counts)
        assert caution is not None
        assert caution.startswith("all labelled images are of one class, images;")


def test_a_folder_whose_name_the_list_has_twice(tmp_path: Path) -> None:
    write_pictures(tmp_path / "split", "crane/0.jpg")
    names = write_text(tmp_path / "names.txt", "crane", "owl", "crane")
    with pytest.raises(DataError, match=r"names\.txt names 'crane' twice"):
        open_images(str(tmp_path / "split"), classes=names)
