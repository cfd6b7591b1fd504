"""Images that a .csv names; test_classes has its labels."""

from pathlib import Path

import pytest

from extract.datasets import DataError, open_images
from tests.extract.datasets.examples import stripes
from tests.extract.pictures import write_file, write_pictures, write_text


def table(folder: Path, *lines: str) -> str:
    write_pictures(folder, "a.jpg", "deep/b.jpg", "c.jpg")
    return str(write_text(folder / "images.csv", *lines))


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


@pytest.mark.parametrize(
    ("path", "is_allowed"),
    [
        *((path, False) for path in ("/etc/passwd", "../a.jpg", "deep/../../a.jpg", ".")),
        ("..", True),
        ("a/..", True),
        ("a\0.jpg", True),
    ],
)
def test_no_path_leads_out_of_the_folder(path: str, is_allowed: bool, tmp_path: Path) -> None:
    """Even where paths may, one that is no file's."""
    write_pictures(tmp_path, "a.jpg")
    with pytest.raises(DataError, match=r"a list names the image '.*', which is not inside .*; do not use this list"):
        open_images(table(tmp_path / "data", "id,path,label", f"1,{path},0"), allow_outside=is_allowed)


def test_a_list_of_ones_own_may_lead_anywhere(tmp_path: Path) -> None:
    write_pictures(tmp_path, "a.jpg", "data/b.jpg")
    write_file(tmp_path / "data/e.jpg", b"")
    rows = f"1,{tmp_path}/a.jpg,0", "2,../a.jpg,1", "3,b.jpg,1", "4,../x.jpg,0", "5,e.jpg,0"
    source = table(tmp_path / "data", "id,path,label", *rows)
    with pytest.raises(DataError, match="unless you wrote it yourself: --allow-outside"):
        open_images(source)
    images = open_images(source, allow_outside=True)
    same = [sample.read() == (tmp_path / "a.jpg").read_bytes() for sample in images.samples]
    assert same == [True, True, False, False, False]
    problems = [sample.problem for sample in images.samples]
    assert problems == [None, None, None, "is in the list, but not there", "is empty (0 bytes)"]
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
