"""What holds for images of any form: ids, labels, digest, decoding."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from extract.datasets import DataError, ImageSet, Sample, open_images
from store import BeyondClsError
from tests.extract.pictures import picture, samples, write_file, write_pictures, write_tar, write_text


def in_folder(root: Path, content: dict[str, tuple[str, bytes]]) -> Path:
    """`content`: id -> (class, image)."""
    for key, (_, image) in content.items():
        write_file(root / f"{key}.png", image)
    return root


@pytest.fixture
def content() -> dict[str, tuple[str, bytes]]:
    return {f"{name}/{i}": (name, picture(10 * c + i)) for c, name in enumerate(("ape", "bee", "cat")) for i in range(2)}


def as_samples(content: dict[str, tuple[str, bytes]], labels: dict[str, int]) -> list[dict[str, object]]:
    return [{"__key__": key, "png": image, "cls": labels[name]} for key, (name, image) in content.items()]


LABELS = {"ape": 0, "bee": 1, "cat": 2}


class TestDigest:
    def test_same_for_a_folder_and_for_tars(self, tmp_path: Path, content: dict[str, tuple[str, bytes]]) -> None:
        folder = open_images(str(in_folder(tmp_path / "folder", content)))
        both = as_samples(content, LABELS)
        write_tar(tmp_path / "tars" / "a-0.tar", both[:4])
        write_tar(tmp_path / "tars" / "a-1.tar", both[4:])
        tars = open_images(str(tmp_path / "tars"))
        assert [s.id for s in folder.samples] == [s.id for s in tars.samples]
        assert folder.digest == tars.digest

    @pytest.mark.parametrize("change", ["id", "label", "image", "order", "one less"])
    def test_changes_with(self, change: str, tmp_path: Path) -> None:
        def digest(name: str, content: list[dict[str, object]]) -> str:
            return open_images(str(write_tar(tmp_path / name, content))).digest

        changed = samples(4)
        if change == "id":
            changed[2]["__key__"] = "other"
        elif change == "label":
            changed[2]["cls"] = 0
        elif change == "image":
            changed[2]["png"] = picture(99)
        elif change == "order":
            changed[1:3] = changed[2:0:-1]
        else:
            changed.pop()
        assert digest("a.tar", samples(4)) == digest("b.tar", samples(4))
        assert digest("a.tar", samples(4)) != digest("c.tar", changed)


class TestDecoding:
    @pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK"])
    def test_gives_rgb(self, mode: str, tmp_path: Path) -> None:
        (tmp_path / "c").mkdir()
        form = "jpg" if mode == "CMYK" else "png"
        Image.new(mode, (9, 7)).save(tmp_path / "c" / f"x.{form}")
        image = open_images(str(tmp_path)).image(0)
        assert (image.mode, image.width, image.height) == ("RGB", 9, 7)

    @pytest.mark.parametrize("form", ["png", "jpeg", "webp", "bmp", "ppm", "gif", "tif", "tiff"])
    def test_forms(self, form: str, tmp_path: Path) -> None:
        encoded = picture(0, "tiff" if form == "tif" else form)
        write_tar(tmp_path / "a.tar", [{"__key__": "x", form: encoded, "cls": 0}])
        write_file(tmp_path / "folder" / "c" / f"x.{form.upper()}", encoded)
        for source in ("a.tar", "folder"):
            assert open_images(str(tmp_path / source)).image(0).size == (36, 40)

    @pytest.mark.parametrize("form", ["gif", "tiff"])
    def test_first_of_several_frames(self, form: str, tmp_path: Path) -> None:
        frames = [Image.new("RGB", (9, 7), colour) for colour in ("red", "blue")]
        (tmp_path / "c").mkdir()
        frames[0].save(tmp_path / "c" / f"x.{form}", save_all=True, append_images=frames[1:])
        assert open_images(str(tmp_path)).image(0).getpixel((4, 3)) == (255, 0, 0)

    @pytest.mark.parametrize("form", ["png", "jpeg"])
    def test_truncated_image_is_named(self, form: str, tmp_path: Path) -> None:
        whole = picture(0, form, 200, 200)
        images = write_tar(tmp_path / "a.tar", [*samples(1), {"__key__": "cut", form: whole[: len(whole) // 2], "cls": 0}])
        with pytest.raises(DataError, match=r"'cut' in .*a\.tar cannot be decoded: .*truncated"):
            open_images(str(images)).image(1)

    def test_corrupt_image_is_named(self, tmp_path: Path) -> None:
        file = write_file(tmp_path / "c" / "bad.jpg", b"\xff\xd8\xff\xe0" + bytes(range(256)) * 4)
        with pytest.raises(DataError, match="cannot be decoded") as caught:
            open_images(str(tmp_path)).image(0)
        assert "'c/bad'" in str(caught.value)
        assert str(file) in str(caught.value)

    def test_empty_image_is_named(self, tmp_path: Path) -> None:
        write_file(tmp_path / "c" / "bad.png", b"")
        with pytest.raises(DataError, match=r"'c/bad' in .*bad\.png cannot be decoded"):
            open_images(str(tmp_path)).image(0)


def sample(key: str, label: int | None = 0, problem: str | None = None) -> Sample:
    return Sample(key, None if label is None else (label,), Path("a.tar"), 0, 1, problem)


def test_ids_are_unique() -> None:
    message = r"id 'x' appears twice, in a\.tar and a\.tar; ids must be unique"
    with pytest.raises(DataError, match=message):
        ImageSet("a.tar", [sample("x"), sample("y"), sample("x")])


def test_labels_lie_within_the_class_names() -> None:
    message = r"'y' in a\.tar has label 2, but there are 2 class names; labels count from 0"
    with pytest.raises(DataError, match=message):
        ImageSet("a.tar", [sample("x", 1), replace(sample("y"), labels=(0, 2))], ["ape", "bee"], multilabel=True)


def test_no_images() -> None:
    with pytest.raises(DataError, match=r"^here has no images; expected \.jpg"):
        ImageSet("here", [])


def test_problems_of_the_set_come_first() -> None:
    images = ImageSet("a.tar", [sample("x"), sample("y", None, "has no label")], None, ["a.tar is cut"])
    assert images.all_problems() == ["a.tar is cut", "'y' in a.tar: has no label"]
    assert len(images) == 2


class TestOpenImages:
    def test_unknown_form(self) -> None:
        with pytest.raises(DataError, match=r"unknown form of data set 'tar'; did you mean 'tars'\? known: .*folder"):
            open_images("x.tar", form="tar")

    def test_missing_file_of_class_names(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "a.tar", samples(1))
        with pytest.raises(DataError, match=r"there is no file of class names '.*names\.txt'"):
            open_images(str(tmp_path), classes=tmp_path / "names.txt")


@pytest.mark.parametrize("name", [b"a/\xff.png", b"caf\xe9/1.png", b"\xe9\xa9/\xf0\x9f.png"])
def test_names_that_are_not_utf8(name: bytes, tmp_path: Path) -> None:
    """Of an image, of its class, or both: ids and names of classes are UTF-8 in a feature set."""
    write_pictures(tmp_path, "a/1.png", "ü/é.png", os.fsdecode(name))
    with pytest.raises(DataError, match=r"is not UTF-8, as names of images and classes have to be; rename it, e\.g\. with"):
        open_images(str(tmp_path))


class TestListed:
    """Some images of a source, by a list of ids or file names."""

    def test_they_are_the_set_that_they_would_be_alone(self, tmp_path: Path) -> None:
        few = [0, 3, 5]
        source = str(write_tar(tmp_path / "all.tar", samples(6)))
        alone = open_images(str(write_tar(tmp_path / "few.tar", (samples(6)[i] for i in few))))
        write_text(tmp_path / "ids.txt", "0005.png", "0000", "0003.JPEG")
        images = open_images(source, ids=tmp_path / "ids.txt")
        assert [sample.id for sample in images.samples] == ["0000", "0003", "0005"], "in the order of the source"
        assert images.digest == alone.digest != open_images(source).digest
        assert images.class_counts == alone.class_counts

    def test_ids_that_are_not_there(self, tmp_path: Path) -> None:
        source = str(write_tar(tmp_path / "all.tar", samples(6)))
        write_text(tmp_path / "ids.txt", "0000", "0009", "0008")
        with pytest.raises(BeyondClsError, match=r"2 of 3 ids are not in .*all\.tar, first '0009'; its ids are like '0000'"):
            open_images(source, ids=tmp_path / "ids.txt")
