"""A result takes the place of the one that its run found there, and of no other; files of others stay."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from store import StoreError
from store.writing.results import ResultFolder
from tests.folders import files

OLD = ("mark.json", "heads/*.json", "table.csv")
MINE = {"heads/notes.txt": b"mine", "notes.txt": b"mine"}


def write(place: ResultFolder, **content: str) -> None:
    with place.written() as folder:
        (folder / "heads").mkdir()
        for name, text in content.items():
            (folder / name.replace("_", "/").replace("XX", ".")).write_text(text)


def first(folder: Path) -> ResultFolder:
    place = ResultFolder(folder, "mark.json", OLD)
    write(place, markXXjson="1", heads_aXXjson="1", tableXXcsv="1")
    return place


@pytest.fixture(params=["atomic", "without"])
def _system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())


@pytest.mark.usefixtures("_system")
def test_an_earlier_one_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    first(tmp_path / "out")
    for name, content in MINE.items():
        (tmp_path / "out" / name).write_bytes(content)
    os.link(tmp_path / "out/table.csv", tmp_path / "cached")  # as DVC's cache may
    write(ResultFolder(tmp_path / "out", "mark.json", OLD), markXXjson="2", heads_bXXjson="2")
    assert files(tmp_path / "out") == MINE | {"mark.json": b"2", "heads/b.json": b"2"}
    write(ResultFolder(tmp_path / "out", "mark.json", OLD), markXXjson="2", tableXXcsv="3")
    assert (tmp_path / "cached").read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cached", "out"]


@pytest.mark.usefixtures("_system")
@pytest.mark.parametrize(
    "meanwhile",
    [
        first,
        lambda folder: write(first(folder), markXXjson="3"),
        lambda folder: (folder.mkdir(), (folder / "mark.json").touch()),
    ],
    ids=["one", "two", "no result"],
)
@pytest.mark.parametrize("begun", [False, True])
def test_one_that_came_meanwhile_is_not(meanwhile: Callable[[Path], object], begun: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if begun:
        write(ResultFolder(out, "mark.json"), markXXjson="0")
    place = ResultFolder(out, "mark.json", OLD)
    if begun:
        (out / "mark.json").unlink()
        (out / "heads").rmdir()
        out.rmdir()
    meanwhile(out)
    before = files(out)
    with pytest.raises(StoreError, match=r"that of this run is in .*\.unfinished/out\."):
        write(place, markXXjson="2", heads_bXXjson="2")
    assert files(out) == before
    (kept,) = (tmp_path / ".unfinished").iterdir()
    assert files(kept) == {"mark.json": b"2", "heads/b.json": b"2"}


def test_nothing_is_left_of_one_that_failed(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write(ResultFolder(tmp_path / "out", "mark.json"), **{"markXXjson": None})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
