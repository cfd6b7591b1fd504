"""Digests of images are remembered by file, size and time; whatever changes, they are those of the bytes."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash
from PIL import Image

from extract.datasets import ImageSet, Sample, open_images
from extract.datasets.digests import FOLDER, digests_of, memory_of
from store import BeyondClsError

OLD = 1_700_000_000_000_000_000  # ns


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pictures that nobody has touched for long."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "index"))
    for row in range(8):
        folder = tmp_path / "images" / "ab"[row % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (row, 0, 0)).save(folder / f"{row}.png")
    for file in (tmp_path / "images").rglob("*"):
        os.utime(file, ns=(OLD, OLD))
    return tmp_path / "images"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of images whose bytes were read."""
    names: list[str] = []
    real: Callable[[Sample], bytes] = Sample.read
    monkeypatch.setattr(Sample, "read", lambda self: (names.append(self.id), real(self))[1])
    return names


def true_digests(images: ImageSet) -> np.ndarray:
    contents = [Path(s.file).read_bytes()[s.offset : s.offset + s.size] for s in images.samples]  # type: ignore[arg-type]
    return np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, contents)), np.uint8).reshape(-1, 16)


def check(folder: Path, read: list[str]) -> list[str]:
    """Ids of images that were read for the digests of a set; the digests are right."""
    read.clear()
    opened = open_images(str(folder))
    np.testing.assert_array_equal(opened.image_digests, true_digests(opened))
    return sorted(read)


def test_nothing_is_read_twice(images: Path, read: list[str]) -> None:
    n = len(open_images(str(images)))
    assert len(check(images, read)) == n
    assert check(images, read) == []
    opened = open_images(str(images))
    assert opened.part([3, 1]).digest == opened.part([3, 1]).digest
    assert read == []


def test_what_has_changed_is_read_again(images: Path, read: list[str]) -> None:
    check(images, read)
    first, second, third, *_ = sorted(images.rglob("*.png"))
    content = second.read_bytes()
    second.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # of the same size, just now
    shutil.copy(third, third.with_name("copy.png"))
    os.utime(third.with_name("copy.png"), ns=(OLD, OLD))
    first.unlink()
    ids = [file.relative_to(images).with_suffix("").as_posix() for file in (second, third.with_name("copy.png"))]
    assert check(images, read) == sorted(ids)
    assert check(images, read) == [ids[0]], "it has changed lately, perhaps again within the same tick"
    os.utime(second, ns=(OLD + 5, OLD + 5))
    assert check(images, read) == [ids[0]]
    assert check(images, read) == []


def test_a_file_in_the_place_of_another_of_its_size_and_time(images: Path, read: list[str]) -> None:
    check(images, read)
    file = min(images.rglob("*.png"))
    content = file.read_bytes()
    other = file.with_name("other")
    other.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(other, ns=(OLD, OLD))
    other.replace(file)
    assert len(check(images, read)) == 1


def test_a_change_without_a_trace_shows_when_it_is_decoded(images: Path, read: list[str]) -> None:
    check(images, read)
    file = min(images.rglob("*.png"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(OLD, OLD))
    opened = open_images(str(images))
    assert opened.image_digests is not None
    with pytest.raises(BeyondClsError, match="it has changed"):
        opened.image(0)
    assert check(images, read), "all are read again"


def test_parts_of_a_set_are_remembered_together(images: Path, read: list[str]) -> None:
    opened = open_images(str(images))
    half = len(opened) // 2
    for part in (opened.samples[:half:2], opened.samples[half:], opened.samples):
        digests_of(part, opened.source)
    read.clear()
    digests_of(opened.samples, opened.source)
    assert read == []


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "folder", "numbers"])
def test_a_damaged_memory_is_none(images: Path, read: list[str], damage: str) -> None:
    check(images, read)
    path = memory_of(str(images))
    assert path is not None
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "numbers":
        np.savez(path, files=np.zeros(3, np.uint8), states=np.zeros((4, 3), np.int64), number=np.array([9]))
    else:
        path.write_bytes({"empty": b"", "cut": content[:-40], "text": b"x" * 500}[damage])
    assert check(images, read)


def test_none_is_wanted(images: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "")
    for _ in range(2):
        assert check(images, read)
    assert not (images.parent / "index").exists()
