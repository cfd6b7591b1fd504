"""A folder of class folders; and what is there in place of images: the message says what it is, and what to do."""

from pathlib import Path

import pytest

from extract.datasets import DataError, open_images
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
        (("x.parquet",), "x.parquet is not as expected"),
        (("x.jpg",), "x.jpg is a single image; .*beyondcls predict"),
        (("d/cat/",), "it holds no file"),
        (("d/train/dataset_info.json", "d/train/data-00000-of-00001.arrow"), "a .arrow in a folder; name that .*/train "),
        (("d/README.md", "d/data/main/train-00000-of-00002.parquet"), "a .parquet in a folder; name that .*/data/main "),
        (("d/train/000.tar", "d/val/000.tar"), "a .tar in a folder; name that of one split: .*/train "),
        (("d/list/images.csv",), "a .csv in a folder; name .*list/images.csv "),
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


def test_images_beside_a_table_are_images(tmp_path: Path) -> None:
    write_file(tmp_path / "x.parquet", b"x")
    assert len(open_images(str(write_pictures(tmp_path, "cat/deep/0.jpg")))) == 1
