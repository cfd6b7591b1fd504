"""What keeps an image from being read for a moment is not recorded as damage: it is tried again, then the run stops."""

import errno
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from PIL import Image, ImageFile

from extract.datasets import DataError, ImageSet, open_images, sample
from extract.datasets.reading import PAUSES, Damage, decode_bytes, patiently
from extract.requests import Request
from extract.run import confirm
from extract.writing import Settings
from store import BeyondClsError
from tests.extract.conftest import BAD, GIVEN, TWO
from tests.extract.pictures import picture, samples, write_file, write_pictures, write_tar
from tests.extract.test_truths import opened, write_images
from tests.folders import files

AT = 9  # the image that cannot be read for a while


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("extract.datasets.reading.PAUSES", (0,) * len(PAUSES))


class Failing:
    """A function that fails `left` times where `is_concerned` says so of its arguments."""

    left = 1000

    def __init__(self, patch, owner, name, error, is_concerned=lambda *_: True):
        before = getattr(owner, name)

        def fail(*arguments, **named):
            if is_concerned(*arguments) and self.left:
                self.left -= 1
                raise error
            return before(*arguments, **named)

        patch.setattr(owner, name, fail)


EIO = OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("error", [EIO, MemoryError()], ids=["disk", "memory"])
def test_a_failure_to_read_stops_the_run_and_what_passes_leaves_no_trace(error, run, images, whole, tmp_path, monkeypatch):
    assert images.digest
    at = images.samples[AT]
    failing = Failing(monkeypatch, sample, "read_range", error, lambda *place: place == (at.file, at.offset, at.size))
    with pytest.raises(BeyondClsError, match=r"'0009' in .*0\.tar cannot be read: .*nothing is recorded") as raised:
        run(tmp_path / "f")
    assert not isinstance(raised.value, DataError)
    assert not (tmp_path / "f").exists()
    failing.left = len(PAUSES)
    run(tmp_path / "f")
    assert failing.left == 0
    assert files(tmp_path / "f") == whole()


@pytest.mark.parametrize("error", [MemoryError(), OSError("out of memory error when reading image file")], ids=["python", "c"])
def test_memory_that_does_not_suffice_to_decode(error, run, tmp_path, monkeypatch):
    """Pillow's decoders in C say so in an OSError without a number."""
    Failing(monkeypatch, ImageFile.ImageFile, "load", error)
    with pytest.raises(BeyondClsError, match="cannot be read: memory does not suffice"):
        run(tmp_path / "f")


def test_what_is_not_there_or_may_not_be_read_is_not_tried_again():
    def work():
        calls.append(1)
        raise PermissionError(errno.EACCES, "Permission denied")

    calls: list[int] = []
    with pytest.raises(BeyondClsError, match="x cannot be read: Permission denied"):
        patiently(work, "x")
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("owner", "name", "end", "opened_at"),
    [
        (os, "scandir", "/b", ""),
        (os, "stat", "/a/1.png", "/list.csv"),
        (Path, "open", "/b/2", ""),
        (Path, "read_bytes", "/list.csv", "/list.csv"),
    ],
)
def test_opening_a_data_set_tries_again_too(owner, name, end, opened_at, tmp_path, monkeypatch):
    for image in ("a/0.png", "a/1.png", "b/2"):
        write_file(tmp_path / "d" / image, picture(3))
    (tmp_path / "d/list.csv").write_text("id,path,label\n0,a/0.png,0\n1,a/1.png,1\n")
    source = tmp_path / "d"
    sound = open_images(f"{source}{opened_at}")
    failing = Failing(monkeypatch, owner, name, EIO, lambda path, *_: str(path).endswith(end))
    with pytest.raises(BeyondClsError, match=rf"{end.lstrip('/')} cannot be read: Input/output error") as raised:
        open_images(f"{source}{opened_at}")
    assert not isinstance(raised.value, DataError)
    failing.left = len(PAUSES)
    again = open_images(f"{source}{opened_at}")
    assert failing.left == 0
    assert again.digest == sound.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.unlink(), "cannot be read: No such file or directory"),
        (lambda file: file.write_bytes(file.read_bytes()[:-30]), "ends after .* bytes, expected .*; it has changed since"),
        (lambda file: file.write_bytes(file.read_bytes()[::-1]), "it has changed since"),
    ],
    ids=["gone", "shorter", "other bytes"],
)
def test_a_file_that_changes_meanwhile_is_not_damaged(change, message, tmp_path):
    images = open_images(str(write_pictures(tmp_path, *(f"a/{i}.png" for i in range(3)), form="png")))
    assert images.digest
    change(tmp_path / "a/1.png")
    with pytest.raises(BeyondClsError, match=message) as raised:
        images.image(1)
    assert not isinstance(raised.value, DataError)


def test_a_tar_or_a_label_map_whose_disk_fails_is_not_damaged(tmp_path, monkeypatch):
    tar = write_tar(tmp_path / "0.tar", samples(3))
    with monkeypatch.context() as patch:
        Failing(patch, tarfile.TarFile, "next", EIO)
        with pytest.raises(BeyondClsError, match=r"0\.tar cannot be read: Input/output error"):
            open_images(str(tar))
    assert not open_images(str(tar)).all_problems()
    write_images(tmp_path / "d")
    Failing(monkeypatch, Path, "read_bytes", EIO, lambda path: path.name == "03.png")
    with pytest.raises(BeyondClsError, match=r"labels/train/03\.png cannot be read: Input/output error"):
        opened(tmp_path / "d")


def test_reasons_hold_no_address_of_an_object():
    with pytest.raises(Damage, match=r"cannot identify image file$"):
        decode_bytes(lambda encoded: Image.open(io.BytesIO(encoded)), b"no image", "x")


def test_a_decoder_that_says_nothing_is_named():
    with pytest.raises(Damage, match="StopIteration"):
        decode_bytes(lambda _: next(iter(())), b"", "x")


class TestRecordedBefore:
    """A row that was recorded as invalid though its image is sound, as a moment's failure once was."""

    @pytest.fixture
    def recorded(self, run, tmp_path, monkeypatch):
        before = ImageSet.image

        def image(self, row, held=None):
            if self.samples[row].id == f"{AT:04d}":
                raise DataError("cannot be decoded: ")
            return before(self, row)

        with monkeypatch.context() as patch:
            patch.setattr(ImageSet, "image", image)
            store = run(tmp_path / "f")
        assert [note["row"] for note in store.attributes["invalid"]] == [BAD[0], AT, BAD[1]]
        return store

    @pytest.mark.parametrize(("verb", "more"), [("repair", {}), ("extend", {"views": 2}), ("refuse", {})])
    def test_is_tried_again_also_by_whoever_takes_it_over(self, verb, more, recorded, run, whole, tmp_path):
        taking_over = {"source": recorded} if verb == "refuse" else {}
        store = run(tmp_path / "g" if taking_over else recorded.path, existing=verb, **more, **taking_over)
        assert files(store.path) == whole(**more)

    def test_is_mentioned(self, recorded, run, encoder, images):
        notes, before = [], files(recorded.path)
        run(recorded.path, warn=notes.append)
        settings = Settings(on_error="record", warn=notes.append)
        confirm(Request.resolve(encoder, images, shard_rows=GIVEN["shard_rows"], statistics=TWO), recorded, settings)
        assert [f"1 invalid rows whose images can be read now, the first is {AT}" in note for note in notes] == [True, True]
        assert files(recorded.path) == before

    def test_damage_stays_recorded(self, run, tmp_path):
        run(tmp_path / "f")
        before = {name: (tmp_path / "f" / name).stat().st_ino for name in files(tmp_path / "f")}
        run(tmp_path / "f", existing="update")
        assert {name: (tmp_path / "f" / name).stat().st_ino for name in before} == before, "nothing is written"
        notes = json.loads((tmp_path / "f/zarr.json").read_text())["attributes"]["beyondcls"]["invalid"]
        assert [note["row"] for note in notes] == list(BAD)
