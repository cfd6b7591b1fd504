"""A folder of class folders, and what is there in place of images; and images that a .csv names."""

from pathlib import Path

import pytest

from extract.datasets import DataError, open_images
from tests.extract.datasets.examples import stripes
from tests.extract.pictures import write_file, write_pictures, write_text


def test_labels_number_the_class_folders_in_alphabetical_order(tmp_path: Path) -> None:
    write_pictures(tmp_path, "cat/2.png", "ape/1.png", "bee/deep/0.png", "ape/0.JPEG", ".cache/0.png", "loose.png")
    write_file(tmp_path / "ape/notes.txt", b"no image")
    images = open_images(str(tmp_path))
    known = [("ape/0", 0), ("ape/1", 0), ("bee/deep/0", 1), ("cat/2", 2), ("loose", None)]
    assert [(s.id, s.label) for s in images.samples] == known
    assert images.classes == ["ape", "bee", "cat"]
    assert images.all_problems() == [f"'loose' in {tmp_path / 'loose.png'}: has no label (it lies in no class folder)"]
    assert images.image(0).size == (36, 40)


def test_names_give_the_labels_of_a_split_that_lacks_some_classes(tmp_path: Path) -> None:
    write_pictures(tmp_path / "split", "cat/0.png")
    images = open_images(str(tmp_path / "split"), classes=write_text(tmp_path / "names.txt", "dog", "", "cat ", "ape"))
    assert ([s.label for s in images.samples], images.classes) == ([1], ["dog", "cat", "ape"])


@pytest.mark.parametrize(
    ("files", "names", "message"),
    [
        (["cat/0.png"], ["dog"], r"has class folders that .*names\.txt does not name: cat"),
        (["cat/0.png"], ["cat", "owl", "cat"], r"names\.txt names 'cat' twice"),
        (["ape/notes.txt"], [], "has no images; expected"),
        (["ape/0.png", "ape/0.jpg"], [], r"id 'ape/0' appears twice, in .*0\.jpg and .*0\.png"),
    ],
)
def test_folders_that_are_refused(files: list[str], names: list[str], message: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "split", *files)
    with pytest.raises(DataError, match=message):
        open_images(str(tmp_path / "split"), classes=write_text(tmp_path / "names.txt", *names) if names else None)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("x.ZIP",), "x.ZIP is a file, not a set of images; expected tars, .*; unpack archives"),
        (("x.npz",), "x.npz is not as expected"),
        (("x.jpg",), "x.jpg is a single image; .*beyondcls predict"),
        (("d/cat/",), "it holds no file"),
        (("d/README.md", "d/data/main/train-00000-of-00002.parquet"), "a .parquet in a folder; name that .*/data/main "),
        (("d/train/000.tar", "d/val/000.tar"), "a .tar in a folder; name that of one split: .*/train "),
        (("d/a.zip", "d/b.zip", "d/notes.txt"), "d has no images; expected .*; most of its files are .zip"),
    ],
)
def test_what_is_no_set_of_images(names: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    for name in names:
        write_file(tmp_path / name, b"x") if not name.endswith("/") else (tmp_path / name).mkdir(parents=True)
    with pytest.raises(DataError, match=kind):
        open_images(str(tmp_path / (names[0] if "/" not in names[0] else "d")))


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "d").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"there is no folder .*d', only a link that leads nowhere"):
        open_images(str(tmp_path / "d"))


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
    [("/etc/passwd", False), ("deep/../../a.jpg", False), ("..", True), ("a/..", True), ("a\0.jpg", True)],
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
    with pytest.raises(DataError, match="leave out --allow-outside"):  # it is for lists of one's own
        open_images(str(tmp_path), allow_outside=True)


def test_label_maps_of_ones_own_list_may_be_anywhere(tmp_path: Path) -> None:
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
        (["id,path,label"], "no row below the header"),
        (["id,path,label", "1,a.jpg"], "row 2 has more or fewer values than the header"),
        (["id,path,label", "1,a.jpg,0", ",c.jpg,0"], "row 3 has no id"),
        (["id,path,label,boxes", "1,a.jpg,0,1 2 3"], r"row 2: box '1 2 3' does not have four numbers x0 y0 x1 y1"),
        (["id,path,label", "1,a.jpg,0;2"], "has several labels an image, but no names of classes; give them with --classes"),
    ],
)
def test_damaged_table(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        open_images(table(tmp_path, *lines))
