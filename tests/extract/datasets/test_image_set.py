"""What holds for images of any form: ids, labels, digest, decoding."""

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from extract.datasets import DataError, ImageSet, Sample, open_images
from store import BeyondClsError
from tests.extract.pictures import picture, samples, write_file, write_pictures, write_tar, write_text


def test_the_digest_is_the_same_for_a_folder_and_for_tars(tmp_path: Path) -> None:
    content = {f"{name}/{i}": picture(10 * label + i) for label, name in enumerate(("ape", "bee", "cat")) for i in range(2)}
    for key, image in content.items():
        write_file(tmp_path / "folder" / f"{key}.png", image)
    both = [{"__key__": key, "png": image, "cls": i // 2} for i, (key, image) in enumerate(content.items())]
    write_tar(tmp_path / "tars" / "a-0.tar", both[:4])
    write_tar(tmp_path / "tars" / "a-1.tar", both[4:])
    folder, tars = open_images(str(tmp_path / "folder")), open_images(str(tmp_path / "tars"))
    assert [s.id for s in folder.samples] == [s.id for s in tars.samples]
    assert folder.digest == tars.digest


@pytest.mark.parametrize("form", ["gif", "tiff"])
def test_first_of_several_frames(form: str, tmp_path: Path) -> None:
    frames = [Image.new("RGB", (9, 7), colour) for colour in ("red", "blue")]
    (tmp_path / "c").mkdir()
    frames[0].save(tmp_path / "c" / f"x.{form}", save_all=True, append_images=frames[1:])
    assert open_images(str(tmp_path)).image(0).getpixel((4, 3)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (picture(0, "jpeg", 200, 200)[:-1000], ".*truncated"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", "cannot identify"),
    ],
)
def test_a_damaged_image_is_named(content: bytes, problem: str, tmp_path: Path) -> None:
    """Nor is a drawing, which Pillow hands to Ghostscript, ever run, whatever the file is called."""
    write_file(tmp_path / "c/bad.png", content)
    with pytest.raises(DataError, match=rf"'c/bad' in {tmp_path}/c/bad\.png cannot be decoded: {problem}"):
        open_images(str(tmp_path)).image(0)


@pytest.mark.parametrize(
    ("images", "classes", "message"),
    [
        ([("x", 0), ("y", 0), ("x", 0)], None, r"id 'x' appears twice, in a\.tar and a\.tar; ids must be unique"),
        ([("x", 1), ("y", 0, 2)], ["ape", "bee"], r"'y' in a\.tar has label 2, but there are 2 class names; labels count from"),
        ([("x", -100)], None, "has label -100; labels count from 0, and None stands for no label"),
        ([], None, r"^here has no images; expected \.jpg"),
    ],
)
def test_what_no_set_is_made_of(images: list[tuple[Any, ...]], classes: list[str] | None, message: str) -> None:
    samples = [Sample(key, tuple(labels), Path("a.tar"), 0, 1) for key, *labels in images]
    with pytest.raises(DataError, match=message):
        ImageSet("here", samples, classes, multilabel=classes is not None)


def test_options_that_mean_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"unknown form of data set 'tar'; did you mean 'tars'\? known: .*folder"):
        open_images("x.tar", form="tar")
    write_tar(tmp_path / "a.tar", samples(1))
    with pytest.raises(DataError, match=r"there is no file of class names '.*names\.txt'"):
        open_images(str(tmp_path), classes=tmp_path / "names.txt")


@pytest.mark.parametrize("name", [b"a/\xff.png", b"\xe9\xa9/\xf0\x9f.png"])
def test_names_that_are_not_utf8(name: bytes, tmp_path: Path) -> None:
    """Of an image, of its class, or both: ids and names of classes are UTF-8 in a feature set."""
    write_pictures(tmp_path, "a/1.png", "ü/é.png", os.fsdecode(name))
    with pytest.raises(DataError, match=r"is not UTF-8, as names of images and classes have to be; rename it, e\.g\. with"):
        open_images(str(tmp_path))


def test_listed_images_are_the_set_that_they_would_be_alone(tmp_path: Path) -> None:
    source = str(write_tar(tmp_path / "all.tar", samples(6)))
    alone = open_images(str(write_tar(tmp_path / "few.tar", (samples(6)[i] for i in (0, 3, 5)))))
    images = open_images(source, ids=write_text(tmp_path / "ids.txt", "0005.png", "0000", "0003.JPEG"))
    assert [sample.id for sample in images.samples] == ["0000", "0003", "0005"]
    assert images.digest == alone.digest != open_images(source).digest
    assert images.class_counts == alone.class_counts
    with pytest.raises(BeyondClsError, match=r"2 of 3 ids are not in .*all\.tar, first '0009'; its ids are like '0000'"):
        open_images(source, ids=write_text(tmp_path / "ids.txt", "0000", "0009", "0008"))
