"""A folder of class folders; and what is there in place of images: the message says what it is, and what to do."""

from pathlib import Path

import pytest

from extract.datasets import DataError, open_images
from tests.extract.pictures import picture, write_file, write_pictures


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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x.ZIP", "an archive, .*; unpack it"),
        ("x.tgz", "compressed, .*; unpack it"),
        ("x.npz", "not as expected"),
        ("x.parquet", "not as expected"),
        ("x.h5", "a file of arrays, .*FOLDER/CLASS/NAME.png"),
        ("data.mdb", "a database of another program"),
        ("x.tsv", "a text or table, .*columns id, path and label"),
        ("x.json", "a text or table"),
        ("x.mp4", "a video, .*save its frames"),
        ("x.jpg", "a single image, .*beyondcls predict"),
        ("x", "a file, .*expected tars"),
    ],
)
def test_files(name: str, kind: str, tmp_path: Path) -> None:
    write_file(tmp_path / name, b"x")
    with pytest.raises(DataError, match=rf"{name} is {kind}"):
        open_images(str(tmp_path / name))


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ((), "it is empty"),
        (("cat/",), "it holds no file"),
        (("train/dataset_info.json", "train/data-00000-of-00001.arrow"), "a data set of Hugging Face, .* --split train"),
        (("dataset_dict.json",), "a data set of Hugging Face"),
        (
            ("README.md", "data/main/train-00000-of-00002.parquet"),
            "files .parquet, each a table in Parquet; name .* the folder",
        ),
        (("zarr.json", "patch/c/0"), "it is a feature set; name the images"),
        (("train/000.tar", "val/000.tar"), "tars in folders, e.g. train/000.tar; name the folder of one split: .*train"),
        (("list/images.csv",), "it has a .csv; name that: .*list/images.csv"),
        (("a.zip", "b.zip", "notes.txt"), "files .zip, each an archive; unpack it"),
        (("train.npz", "test.npz"), "files .npz, each a file of arrays"),
    ],
)
def test_folders(names: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    for name in names:
        if name.endswith("/"):
            (tmp_path / "d" / name).mkdir(parents=True)
        else:
            write_file(tmp_path / "d" / name, b"x")
    (tmp_path / "d").mkdir(exist_ok=True)
    with pytest.raises(DataError, match=f"d has no images; expected .*{kind}"):
        open_images(str(tmp_path / "d"))


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "d").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"there is no folder .*d', only a link that leads nowhere"):
        open_images(str(tmp_path / "d"))


def test_images_beside_a_table_are_images(tmp_path: Path) -> None:
    write_file(tmp_path / "x.parquet", b"x")
    assert len(open_images(str(write_pictures(tmp_path, "cat/deep/0.jpg")))) == 1
