"""Images that a .csv names."""

from pathlib import Path

import pytest

from extract.datasets import DataError, open_images
from tests.extract.datasets.examples import stripes
from tests.extract.pictures import write_file, write_pictures, write_text


def table(folder: Path, *lines: str) -> str:
    write_pictures(folder, "a.jpg", "deep/b.jpg", "c.jpg")
    return str(write_text(folder / "images.csv", *lines))


@pytest.mark.parametrize(
    ("lines", "labels", "classes"),
    [
        (["id,path,label,other", "1,a.jpg,3,x", '2,deep/b.jpg," 0 ","y,z"'], [(3,), (0,)], None),
        (["id,path,label", "1,a.jpg,0", "2,c.jpg,"], [(0,), None], None),
        (["id,path,label", "1,a.jpg,", "2,c.jpg, "], [None, None], None),  # a set without labels
        (["id,path,labels", "1,a.jpg,cat", "2,c.jpg,ape"], [(1,), (0,)], ["ape", "cat"]),
        (["id,path,label", "1,a.jpg,cat; ape", "2,c.jpg,", "3,deep/b.jpg,ape;ape"], [(1, 0), (), (0,)], ["ape", "cat"]),
        # Parts that are no labels, and any part in a column of single labels.
        (
            ["id,path,labels", '1,a.jpg,"tench, Tinca tinca"', "2,c.jpg,hot dog", "3,deep/b.jpg,TV/monitor"],
            [(2,), (1,), (0,)],
            ["TV/monitor", "hot dog", "tench, Tinca tinca"],
        ),
        (["id,path,label", "1,a.jpg,cat|dog", "2,c.jpg,cat"], [(1,), (0,)], ["cat", "cat|dog"]),
    ],
)
def test_labels(lines: list[str], labels: list[object], classes: list[str] | None, tmp_path: Path) -> None:
    images = open_images(table(tmp_path, *lines))
    assert [sample.labels for sample in images.samples] == labels
    assert [sample.id for sample in images.samples] == ["1", "2", "3"][: len(images)]
    assert (images.classes, images.multilabel) == (classes, "labels" in lines[0] or ";" in lines[1])
    assert images.is_unlabelled == (not any(labels))
    lacks = None in labels and not images.is_unlabelled
    assert [s.problem for s in images.samples if s.problem] == ["has no label (its column is empty)"] * lacks
    assert images.image(1).size == (36, 40)


@pytest.mark.parametrize(
    ("lines", "labels"),
    [
        (["id,path,label", "1,a.jpg,cat", "2,c.jpg,2"], [(1,), (2,)]),
        (["id,path,label", "1,a.jpg,0;2"], [(0, 2)]),
        (["id,path,labels", "1,a.jpg,cat|dog;24 7", "2,c.jpg,dog"], [(4, 3), (0,)]),  # are never split
    ],
)
def test_a_file_orders_the_classes(lines: list[str], labels: list[object], tmp_path: Path) -> None:
    names = ["dog", "cat", "ape", "24 7", "cat|dog"]
    images = open_images(table(tmp_path, *lines), classes=write_text(tmp_path / "names.txt", *names))
    assert ([sample.labels for sample in images.samples], images.classes) == (labels, names)


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


@pytest.mark.parametrize(
    ("lines", "boxes"),
    [
        (["id,path,label,x0,y0,x1,y1", "1,a.jpg,2,1,2,3.5,4", "2,c.jpg,0,,,,"], [((1, 2, 3.5, 4, 2),), ()]),
        (
            ["id,path,labels,boxes", "1,a.jpg,x;y,1 2 3 4; 5 6 7 8", "2,c.jpg,x,", "3,deep/b.jpg,y,0 0 9 9"],
            [((1, 2, 3, 4, -1), (5, 6, 7, 8, -1)), (), ((0, 0, 9, 9, 1),)],
        ),
    ],
)
def test_boxes(lines: list[str], boxes: list[object], tmp_path: Path) -> None:
    assert [s.boxes for s in open_images(table(tmp_path, *lines)).samples] == boxes


@pytest.mark.parametrize("path", ["/etc/passwd", "../a.jpg", "deep/../../a.jpg", "."])
def test_no_path_leads_out_of_the_folder(path: str, tmp_path: Path) -> None:
    write_pictures(tmp_path, "a.jpg")
    with pytest.raises(DataError, match=r"a list names the image '.*', which is not inside .*; do not use this list"):
        open_images(table(tmp_path / "data", "id,path,label", f"1,{path},0"))


def test_a_list_of_ones_own_may_lead_anywhere(tmp_path: Path) -> None:
    write_pictures(tmp_path, "a.jpg", "data/b.jpg")
    write_file(tmp_path / "data/e.jpg", b"")
    rows = f"1,{tmp_path}/a.jpg,0", "2,../a.jpg,1", "3,b.jpg,1", "4,../x.jpg,0", "5,e.jpg,0"
    source = table(tmp_path / "data", "id,path,label", *rows)
    with pytest.raises(DataError, match="unless you wrote it yourself: --allow-outside"):
        open_images(source)
    images = open_images(source, allow_outside=True)
    assert [sample.read() == (tmp_path / "a.jpg").read_bytes() for sample in images.samples] == [
        True,
        True,
        False,
        False,
        False,
    ]
    problems = [sample.problem for sample in images.samples if sample.problem]
    assert problems == ["is in the list, but not there", "is empty (0 bytes)"]
    with pytest.raises(DataError, match="unless you wrote it"):
        open_images(source)  # the permission ends with the call
    with pytest.raises(DataError, match="leave out --allow-outside"):  # it is for lists of one's own
        open_images(str(tmp_path), allow_outside=True)


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
        (["id,path,label", "1,a.jpg,0;2"], "has several labels an image, but no names of classes; give them with --classes"),
    ],
)
def test_damaged_table(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        open_images(table(tmp_path, *lines))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("cat", "bee"), r"images\.csv, row 3: label 'bee' is not a number, and no class of that name is known"),
        (('"cat,dog"', "dog"), "'cat,dog' among the labels looks like several"),
    ],
)
def test_labels_that_a_file_of_names_does_not_have(labels: tuple[str, str], message: str, tmp_path: Path) -> None:
    source = table(tmp_path, "id,path,labels", *(f"{i},{i}.jpg,{label}" for i, label in enumerate(labels)))
    with pytest.raises(DataError, match=message):
        open_images(source, classes=write_text(tmp_path / "names.txt", "cat", "dog" if "dog" in labels else "owl"))
