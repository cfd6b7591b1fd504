"""A folder of class folders."""

from pathlib import Path

import pytest

from extract.datasets import DataError, open_images
from tests.extract.pictures import picture, write_file


def test_labels_number_the_class_folders_in_alphabetical_order(tmp_path: Path) -> None:
    for name in ("cat/2.png", "ape/1.png", "bee/deep/0.png", "ape/0.JPEG"):
        form = "jpeg" if name.endswith("JPEG") else "png"
        write_file(tmp_path / name, picture(0, form))
    write_file(tmp_path / "ape" / "notes.txt", b"no image")
    write_file(tmp_path / ".cache" / "0.png", picture(0))
    images = open_images(str(tmp_path))
    assert [(s.id, s.label) for s in images.samples] == [("ape/0", 0), ("ape/1", 0), ("bee/deep/0", 1), ("cat/2", 2)]
    assert images.classes == ["ape", "bee", "cat"]
    assert images.all_problems() == []
    assert images.image(0).size == (36, 40)


def test_class_names_give_the_labels_of_a_split_that_lacks_some(tmp_path: Path) -> None:
    write_file(tmp_path / "split" / "cat" / "0.png", picture(0))
    names = write_file(tmp_path / "names.txt", b"dog\n\ncat \nape\n")
    images = open_images(str(tmp_path / "split"), classes=names)
    assert [s.label for s in images.samples] == [1]
    assert images.classes == ["dog", "cat", "ape"]


def test_class_folder_that_is_not_named(tmp_path: Path) -> None:
    write_file(tmp_path / "split" / "cat" / "0.png", picture(0))
    names = write_file(tmp_path / "names.txt", b"dog\n")
    with pytest.raises(DataError, match=r"has class folders that .*names\.txt does not name: cat"):
        open_images(str(tmp_path / "split"), classes=names)


def test_class_folders_without_images(tmp_path: Path) -> None:
    write_file(tmp_path / "ape" / "notes.txt", b"no image")
    with pytest.raises(DataError, match="has no images; expected"):
        open_images(str(tmp_path))


def test_loose_image_is_kept_and_named(tmp_path: Path) -> None:
    write_file(tmp_path / "ape" / "0.png", picture(0))
    write_file(tmp_path / "loose.png", picture(1))
    images = open_images(str(tmp_path))
    assert [(s.id, s.label) for s in images.samples] == [("ape/0", 0), ("loose", None)]
    [problem] = images.all_problems()
    assert problem == f"'loose' in {tmp_path / 'loose.png'}: has no label (it lies in no class folder)"


def test_same_name_in_two_formats(tmp_path: Path) -> None:
    write_file(tmp_path / "ape" / "0.png", picture(0))
    write_file(tmp_path / "ape" / "0.jpg", picture(0, "jpeg"))
    with pytest.raises(DataError, match=r"id 'ape/0' appears twice, in .*0\.jpg and .*0\.png"):
        open_images(str(tmp_path))
