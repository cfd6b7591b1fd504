"""A result takes the place of the one that its run found there, and of no other; files of others stay."""

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store import StoreError
from store.writing.results import ResultFolder
from tests.folders import files

OLD = ("mark.json", "heads/*.json", "table.csv")
MINE = {"heads/notes.txt": b"mine", "notes.txt": b"mine"}


def write(place: ResultFolder, content: dict[str, bytes]) -> None:
    with place.written() as folder:
        (folder / "heads").mkdir()
        for name, data in content.items():
            (folder / name).write_bytes(data)


def first(folder: Path) -> ResultFolder:
    place = ResultFolder(folder, "mark.json", OLD)
    write(place, {"mark.json": b"1", "heads/a.json": b"1", "table.csv": b"1"})
    return place


@pytest.fixture(params=["atomic", "without"])
def _system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())


@pytest.mark.usefixtures("_system")
def test_an_earlier_one_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    first(out := tmp_path / "out")
    for name, content in MINE.items():
        (out / name).write_bytes(content)
    os.link(out / "table.csv", tmp_path / "cached")  # as DVC's cache may
    for new in ({"mark.json": b"2", "heads/b.json": b"2"}, {"mark.json": b"2", "table.csv": b"3"}):
        write(ResultFolder(out, "mark.json", OLD), new)
        assert files(out) == MINE | new
    assert (tmp_path / "cached").read_bytes() == b"1"
    with pytest.raises(FileNotFoundError):
        write(ResultFolder(out, "mark.json"), {"none/x": b""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cached", "out"], "nothing is left of one that failed"


@pytest.mark.usefixtures("_system")
@pytest.mark.parametrize(
    "meanwhile",
    [
        first,
        lambda folder: write(first(folder), {"mark.json": b"3"}),
        lambda folder: (folder.mkdir(), (folder / "mark.json").touch()),
    ],
    ids=["one", "two", "no result"],
)
@pytest.mark.parametrize("begun", [False, True])
def test_one_that_came_meanwhile_is_not(meanwhile: Callable[[Path], object], begun: bool, tmp_path: Path) -> None:
    out, new = tmp_path / "out", {"mark.json": b"2", "heads/b.json": b"2"}
    if begun:
        write(ResultFolder(out, "mark.json"), {"mark.json": b"0"})
    place = ResultFolder(out, "mark.json", OLD)
    shutil.rmtree(out, ignore_errors=True)
    meanwhile(out)
    before = files(out)
    with pytest.raises(StoreError, match=r"that of this run is in .*\.unfinished/out\."):
        write(place, new)
    assert files(out) == before
    (kept,) = (tmp_path / ".unfinished").iterdir()
    assert files(kept) == new
