"""Images that a .csv names."""

from pathlib import Path

import pytest

from extract.datasets import DataError, ImageSet, open_images
from extract.datasets.form import stripes
from tests.extract.pictures import write_file, write_pictures, write_text


def table(folder: Path, *lines: str) -> str:
    write_pictures(folder, "a.jpg", "deep/b.jpg", "c.jpg")
    return str(write_text(folder / "images.csv", *lines))


def ids_and_labels(images: ImageSet) -> list[tuple[str, tuple[int, ...] | None]]:
    return [(s.id, s.labels) for s in images.samples]


def test_labels_are_numbers(tmp_path: Path) -> None:
    images = open_images(table(tmp_path, "id,path,label,other", "one,a.jpg,3,x", 'two,deep/b.jpg," 0 ","y,z"'))
    assert ids_and_labels(images) == [("one", (3,)), ("two", (0,))]
    assert images.classes is None
    assert not images.multilabel
    assert images.all_problems() == []
    assert images.image(1).size == (36, 40)


def test_a_file_orders_the_classes(tmp_path: Path) -> None:
    source = table(tmp_path, "id,path,label", "1,a.jpg,cat", "2,c.jpg,2")
    names = write_text(tmp_path / "names.txt", "dog", "cat", "ape")
    images = open_images(source, classes=names)
    assert ids_and_labels(images) == [("1", (1,)), ("2", (2,))]
    assert images.classes == ["dog", "cat", "ape"]


def test_several_labels(tmp_path: Path) -> None:
    images = open_images(table(tmp_path, "id,path,label", "1,a.jpg,cat; ape", "2,c.jpg,", "3,deep/b.jpg,ape;ape"))
    assert images.multilabel
    assert ids_and_labels(images) == [("1", (1, 0)), ("2", ()), ("3", (0,))]
    assert images.all_problems() == [], "in such a set, no label is an answer"


@pytest.mark.parametrize(
    "labels",
    [
        ("cat|dog", "bird"),
        ("cat|dog", "owl|bird"),
        ('"cat,dog"', "dog", "cat"),
        ('"cat, dog"', '"dog,owl"', '"owl,cat"'),
        ("cat/dog", "dog/cat"),
        ("cat dog", "dog", "cat"),
        ("cat\tdog", "owl"),
        ("1 2", "0"),
        ('"1,2"', '"0"'),
        ("\"['cat', 'dog']\"", "\"['owl']\""),
        ("[2]", "[0]"),
        ("cat;dog|owl", "cat"),
    ],
)
def test_labels_with_another_separator_are_no_new_classes(labels: tuple[str, ...], tmp_path: Path) -> None:
    rows = [
        f"{i},{name},{label}" for i, (name, label) in enumerate(zip(("a.jpg", "c.jpg", "deep/b.jpg"), labels, strict=False))
    ]
    with pytest.raises(DataError, match=r"among the labels looks like several, which `;` separates, .* \(--classes\)$"):
        open_images(table(tmp_path, "id,path,labels", *rows))


def test_names_of_one_class_may_look_like_several(tmp_path: Path) -> None:
    """Parts that are no labels, in a column of single labels, or with a file that names the class."""
    odd = ("tench, Tinca tinca", "hot dog", "TV/monitor", "dog", "24 7")
    rows = [f'{i},{name},"{label}"' for i, (name, label) in enumerate(zip(("a.jpg", "c.jpg", "deep/b.jpg"), odd, strict=False))]
    assert open_images(table(tmp_path, "id,path,labels", *rows)).classes == sorted(odd[:3])
    assert open_images(table(tmp_path, "id,path,label", "1,a.jpg,cat|dog", "2,c.jpg,cat")).classes == ["cat", "cat|dog"]
    names = write_text(tmp_path / "names.txt", "cat", "cat|dog", *odd)
    images = open_images(table(tmp_path, "id,path,labels", "1,a.jpg,cat|dog;24 7", "2,c.jpg,dog"), classes=names)
    assert ids_and_labels(images) == [("1", (1, 6)), ("2", (5,))]
    with pytest.raises(DataError, match="'cat,dog' among the labels looks like several"):
        open_images(table(tmp_path, "id,path,labels", '1,a.jpg,"cat,dog"', "2,c.jpg,dog"), classes=names)


def test_column_labels_is_multilabel_though_every_image_has_one(tmp_path: Path) -> None:
    assert open_images(table(tmp_path, "id,path,labels", "1,a.jpg,cat", "2,c.jpg,ape")).multilabel


def test_several_numbers_need_names(tmp_path: Path) -> None:
    source = table(tmp_path, "id,path,label", "1,a.jpg,0;2")
    with pytest.raises(DataError, match="has several labels an image, but no names of classes; give them with --classes"):
        open_images(source)
    assert ids_and_labels(open_images(source, classes=write_text(tmp_path / "names.txt", "x", "y", "z"))) == [("1", (0, 2))]


def test_no_label_in_a_set_of_single_ones(tmp_path: Path) -> None:
    images = open_images(table(tmp_path, "id,path,label", "1,a.jpg,0", "2,c.jpg,"))
    assert ids_and_labels(images) == [("1", (0,)), ("2", None)]
    assert [s.problem for s in images.samples] == [None, "has no label (its column is empty)"]


def test_boxes_by_corner(tmp_path: Path) -> None:
    images = open_images(table(tmp_path, "id,path,label,x0,y0,x1,y1", "1,a.jpg,2,1,2,3.5,4", "2,c.jpg,0,,,,"))
    assert [s.boxes for s in images.samples] == [((1, 2, 3.5, 4, 2),), ()]


def test_several_boxes(tmp_path: Path) -> None:
    images = open_images(
        table(tmp_path, "id,path,labels,boxes", "1,a.jpg,x;y,1 2 3 4; 5 6 7 8", "2,c.jpg,x,", "3,deep/b.jpg,y,0 0 9 9")
    )
    assert [s.boxes for s in images.samples] == [((1, 2, 3, 4, -1), (5, 6, 7, 8, -1)), (), ((0, 0, 9, 9, 1),)]


@pytest.mark.parametrize("path", ["/etc/passwd", "../a.jpg", "deep/../../a.jpg", "."])
def test_no_path_leads_out_of_the_folder(path: str, tmp_path: Path) -> None:
    write_pictures(tmp_path, "a.jpg")
    with pytest.raises(DataError, match=r"a list names the image '.*', which is not inside .*; do not use this list"):
        open_images(table(tmp_path / "data", "id,path,label", f"1,{path},0"))


def test_a_list_of_ones_own_may_lead_anywhere(tmp_path: Path) -> None:
    write_pictures(tmp_path, "a.jpg", "data/b.jpg")
    source = table(tmp_path / "data", "id,path,label", f"1,{tmp_path}/a.jpg,0", "2,../a.jpg,1", "3,b.jpg,1", "4,../x.jpg,0")
    with pytest.raises(DataError, match="unless you wrote it yourself: --allow-outside"):
        open_images(source)
    images = open_images(source, allow_outside=True)
    assert [sample.read() == (tmp_path / "a.jpg").read_bytes() for sample in images.samples] == [True, True, False, False]
    assert [sample.problem for sample in images.samples] == [None, None, None, "is in the list, but not there"]
    with pytest.raises(DataError, match="unless you wrote it"):
        open_images(source)  # the permission ends with the call


def test_label_maps_of_ones_own_list_may_be_anywhere(tmp_path: Path) -> None:
    write_pictures(tmp_path, "data/a.jpg")
    write_file(tmp_path / "maps/a.png", stripes(0, 1)())
    write_text(tmp_path / "data/segmentation-classes.txt", "road", "wall")
    source = table(tmp_path / "data", "id,path,segmentation", f"1,a.jpg,{tmp_path}/maps/a.png")
    with pytest.raises(DataError, match="--allow-outside"):
        open_images(source)
    assert [sample.labels for sample in open_images(source, allow_outside=True).samples] == [(0, 1)]


@pytest.mark.parametrize("path", ["..", "a/..", "a\0.jpg"])
def test_what_no_permission_allows(path: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a list names the image"):
        open_images(table(tmp_path, "id,path,label", f"1,{path},0"), allow_outside=True)


def test_permission_is_for_lists_of_ones_own(tmp_path: Path) -> None:
    write_pictures(tmp_path, "cat/a.jpg")
    with pytest.raises(DataError, match="leave out --allow-outside"):
        open_images(str(tmp_path), allow_outside=True)


def test_without_any_label_it_is_a_set_without_labels(tmp_path: Path) -> None:
    images = open_images(table(tmp_path, "id,path,label", "1,a.jpg,", "2,c.jpg, "))
    assert images.is_unlabelled
    assert [sample.problem for sample in images.samples] == [None, None]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["id,label", "1,0"], "no column path among id, label"),
        (["id,path", "1,a.jpg"], "expected one of the columns label and labels"),
        (["id,path,label,labels", "1,a.jpg,0,0"], "expected one of the columns label and labels"),
        (["id,path,label"], "no row below the header"),
        ([], "no column id, path among"),
        (["id,path,label", "1,a.jpg"], "row 2 has more or fewer values than the header"),
        (["id,path,label", "1,a.jpg,0,9"], "row 2 has more or fewer values than the header"),
        (["id,path,label", "1,a.jpg,0", ",c.jpg,0"], "row 3 has no id"),
        (["id,path,label,boxes", "1,a.jpg,0,1 2 3"], r"row 2: box '1 2 3' does not have four numbers x0 y0 x1 y1"),
        (["id,path,label,boxes", "1,a.jpg,0,1 2 3 x"], r"row 2: could not convert string to float: 'x'"),
        (["id,path,label", '1,a.jpg,"0'], "not as expected .*unexpected end of data"),
        (["id,path,label", "1,a.jpg,0", "1,c.jpg,0"], "id '1' appears twice"),
    ],
)
def test_damaged_table(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        open_images(table(tmp_path, *lines))


def test_label_that_no_class_is_called(tmp_path: Path) -> None:
    source = table(tmp_path, "id,path,label", "1,a.jpg,cat", "2,c.jpg,bee")
    with pytest.raises(DataError, match=r"images\.csv, row 3: label 'bee' is not a number, and no class of that name is known"):
        open_images(source, classes=write_text(tmp_path / "names.txt", "cat"))
