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
