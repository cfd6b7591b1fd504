"""Lists of images and their digests are kept by size and time of files; whatever changes, they are those of the files."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash
from PIL import Image

from beyondcls.testing.datasets import Split, picture, splits
from extract.datasets import DATASETS, DataError, ImageSet, Sample, open_images, sample
from extract.datasets.index import FOLDER, index_of
from store import BeyondClsError
from tests.extract.datasets.test_imagenet import VAL, annotation, devkit, flat_val, mapping
from tests.extract.pictures import samples, write_example, write_tar, write_text

INDEXED = [name for name in DATASETS if DATASETS[name].is_made_of_states]
OLD = 1_700_000_000_000_000_000  # ns


def aged(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.utime(path, ns=(OLD, OLD), follow_symlinks=False)


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pictures that nobody has touched for long."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "index"))
    for row in range(8):
        folder = tmp_path / "images" / "ab"[row % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (row, 0, 0)).save(folder / f"{row}.png")
    aged(tmp_path / "images")
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
    opened = open_images(str(images))
    half = len(opened) // 2
    for part in (range(0, half, 2), range(half, len(opened)), range(len(opened))):
        assert len(open_images(str(images)).part(part).image_digests) == len(part)
    assert len(read) == len(opened)
    assert check(images, read) == []
    opened = open_images(str(images))
    assert opened.part([3, 1]).digest == opened.part([3, 1]).digest
    assert read == []


def test_images_of_a_tar_are_read_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where something else lies between them, where one is far behind the last, and where one is missing."""
    monkeypatch.setattr(sample, "NEAR", 12_000)
    monkeypatch.setattr(sample, "READ_NBYTES", 40_000)
    content = samples(200)
    content[52] |= {"json": b" " * 2000}
    content[100] |= {"json": b" " * 9000}
    del content[150]["png"]
    tar = write_tar(tmp_path / "images.tar", content)
    ranges: list[tuple[int, int]] = []
    real = sample.read_range
    monkeypatch.setattr(sample, "read_range", lambda *place: (ranges.append(place[1:]), real(*place))[1])
    opened = open_images(str(tar))
    np.testing.assert_array_equal(opened.image_digests, true_digests(opened))
    assert tar.stat().st_size / 40_000 < len(ranges) < 45
    assert max(nbytes for _, nbytes in ranges) < 45_000
    near, far = (opened.samples.offset[[row - 1, row]] for row in (52, 100))
    assert [begin for begin, nbytes in ranges if begin <= near[0] and begin + nbytes > near[1]]
    assert not [begin for begin, nbytes in ranges if begin <= far[0] and begin + nbytes > far[1]]


def test_what_has_changed_is_read_again(images: Path, read: list[str]) -> None:
    check(images, read)
    first, second, third, *_ = sorted(images.rglob("*.png"))
    content, new = second.read_bytes(), third.with_name("copy.png")
    second.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # of the same size, just now
    shutil.copy(third, new)
    os.utime(new, ns=(OLD, OLD))
    first.unlink()
    ids = [file.relative_to(images).with_suffix("").as_posix() for file in (second, new)]
    assert check(images, read) == sorted(ids)
    assert check(images, read) == [ids[0]], "it has changed lately, perhaps again within the same tick"
    os.utime(second, ns=(OLD + 5, OLD + 5))
    assert check(images, read) == [ids[0]]
    assert check(images, read) == []
    other = second.with_name("other")  # of its size and time, in its place
    other.write_bytes(content)
    os.utime(other, ns=(OLD + 5, OLD + 5))
    other.replace(second)
    assert check(images, read) == [ids[0]]


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


@pytest.mark.parametrize("damage", ["cut", "numbers", "a bit"])
def test_a_damaged_memory_is_none(images: Path, read: list[str], damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(images, read)
    path = index_of(str(images), "folder", None, None)
    assert path is not None
    content = path.read_bytes()
    if damage == "numbers":
        np.savez(path, files=np.zeros(3, np.uint8), states=np.zeros((4, 3), np.int64), number=np.array([9]))
    else:
        at = content.index(b"ids_text") + 165  # in the names of images
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        path.write_bytes(content[:-40] if damage == "cut" else flipped)
    assert check(images, read)
    monkeypatch.setenv(FOLDER, "")  # none is wanted
    assert len(check(images, read)) == len(check(images, read)) == 8


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    for form in {type(DATASETS[name]) for name in INDEXED}:
        real = form.images
        monkeypatch.setattr(form, "images", lambda self, name, *a, real=real: (names.append(name), real(self, name, *a))[1])
    return names


def described(case: Split, source: str) -> object:
    try:
        images = open_images(source, case.form, split=case.split, allow_left_out=True)
        about = images.classes, images.problems, str(images.left_out), images.multilabel, images.source
        return list(images.samples), images.digest, images.class_counts, *about
    except DataError as error:
        return str(error)


def changes(folder: Path) -> Iterator[Callable[[], object]]:
    for number, path in enumerate(sorted(folder.rglob("*"))):
        yield lambda path=path: path.rename(path.with_name(f"new-{path.name}"))
        if path.is_symlink():  # which leads out of the folder
            yield lambda path=path: path.resolve().write_bytes(picture(98))
        elif path.is_dir():
            yield lambda path=path: (path / "new.jpeg").write_bytes(picture(99))
        else:
            yield lambda path=path, number=number: path.write_bytes(picture(100 + number))
            yield lambda path=path: path.write_bytes(path.read_bytes() + b"n99999999 one more\n")


def kaggle(root: Path) -> None:
    mapping(flat_val(root))
    for name, wnid in VAL.items():
        write_text(root / "Annotations/CLS-LOC/val" / f"{name}.xml", annotation((wnid, 1, 2, 3, 4)))


LAYOUTS: dict[str, Callable[[Path], object]] = {"devkit": lambda root: devkit(flat_val(root)), "annotations": kaggle}
CASES = [(case, None) for form in INDEXED for case in splits(form)] + [(Split("imagenet", "val"), name) for name in LAYOUTS]


@pytest.mark.parametrize(("case", "layout"), CASES, ids=str)
def test_a_list_is_used_again_until_something_changes(
    case: Split, layout: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: list[str]
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "index"))
    folder = tmp_path / "data"
    source = str(folder)
    if layout is None:
        source = write_example(folder, case.form)
    else:
        LAYOUTS[layout](folder)
    (folder / "notes.unknown").write_bytes(b"no image yet")
    (folder / "link.jpeg").symlink_to(tmp_path / "target.jpeg")
    aged(folder)
    shutil.copytree(folder, tmp_path / "original", symlinks=True)
    first = described(case, source)
    assert (described(case, source), len(listed)) == (first, 1), "it was listed again"
    n_changes = len(list(changes(folder)))
    for number in range(n_changes):
        shutil.rmtree(folder)
        (tmp_path / "target.jpeg").unlink(missing_ok=True)
        shutil.copytree(tmp_path / "original", folder, symlinks=True)
        aged(folder)
        assert described(case, source) == first
        list(changes(folder))[number]()
        with_index = described(case, source)
        monkeypatch.setenv(FOLDER, "")
        assert with_index == described(case, source), number
        monkeypatch.setenv(FOLDER, str(tmp_path / "index"))
    assert n_changes > 9


def test_names_of_classes_that_are_given(images: Path, listed: list[str]) -> None:
    names = images.parent / "names.txt"
    for content in ("a\nb\n", "a\nb\nc\n"):
        names.write_text(content)
        for _ in range(2):
            os.utime(names, ns=(OLD + len(content), OLD))
            opened = open_images(str(images), classes=names)
            assert (opened.classes, len(opened.digest)) == (content.split(), 32)
    assert len(listed) == 2


def test_files_of_a_large_set_are_looked_at_when_they_are_decoded(
    images: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extract.datasets.index.MOST_LOOKED_AT", 0)
    check(images, read)
    file = min(images.rglob("*.png"))
    Image.new("RGB", (9, 9)).save(file)
    os.utime(file, ns=(OLD + 5, OLD + 5))
    opened = open_images(str(images))
    assert opened.index.is_outdated()
    with pytest.raises(BeyondClsError, match="changed"):
        opened.image(0)
    assert len(check(images, read)) == 1, "of the others nothing is read again"
    file.touch()
    opened = open_images(str(images))
    with pytest.raises(BeyondClsError, match="have changed since they were listed"):
        opened.check_files()
    open_images(str(images)).check_files()


def test_a_list_of_another_version_is_made_again(
    images: Path, read: list[str], monkeypatch: pytest.MonkeyPatch, listed: list[str]
) -> None:
    check(images, read)
    monkeypatch.setattr("extract.datasets.index._reader_version", lambda: "another")
    assert check(images, read) == [], "digests do not depend on it"
    assert len(listed) == 2
