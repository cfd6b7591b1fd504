"""A finished set, or another result, takes its place without removing anything that its run did not find there at first."""

import contextlib
import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store import FeatureStore, FeatureWriter, StoreError
from store.places import disk
from store.places.disk import content_of, exchange
from store.writing import claims, publishing
from store.writing.publishing import discard_staging, refused_sets
from store.writing.results import ResultFolder
from tests.folders import files
from tests.store.conftest import ATTRIBUTES
from tests.store.test_writing import before_call, interrupt
from tests.store.tiny import Tiny

OLD, NEW, OTHER = Tiny(8, (3,), lean=True), Tiny(8, (3, 5), lean=True), Tiny(9, (3,), lean=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "features/one"


@pytest.fixture(autouse=True)
def _fewer_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.format.layout.KINDS", ("images", "patch"))


@pytest.fixture(params=["atomic", "without"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems that can swap two names in one step, and those that cannot."""
    if request.param == "without":
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")


MEANWHILE: dict[str, Callable[[Path], object]] = {
    "a file deep in it": lambda path: put(path / "deep/down/notes.txt"),
    "a file of its name": put,
    "a link without an end": lambda path: path.symlink_to("nowhere"),
    "a link in it": lambda path: (path.mkdir(), (path / "images").symlink_to(path.parent)),
    "another set": OTHER.make,
}


@pytest.mark.parametrize("at_last", [False, True])
@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=MEANWHILE)
def test_what_appears_meanwhile_stays(
    meanwhile: Callable[[Path], object], at_last: bool, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[object] = []

    def come() -> None:
        (tmp_path / "made").mkdir()
        meanwhile(tmp_path / "made/one")
        os.rename(tmp_path / "made/one", path)

    def see() -> None:
        states.append((os.readlink(path) if path.is_symlink() else None, files(path), path.is_file()))

    with NEW.begin(path) as writer, monkeypatch.context() as patch:
        for unit in writer.missing_units():
            NEW.write(writer, unit)
        before_call(1 if at_last else 0, lambda: (come(), see()), patch, os, "rename")
        with pytest.raises(StoreError, match=r"the finished set is in .*the same command with another --out"):
            writer.finish(ATTRIBUTES)
    see()
    assert states[0] == states[1]


def test_only_the_first_of_two_sets_is_published(path: Path, tmp_path: Path) -> None:
    with NEW.begin(path) as first, OTHER.begin(path) as second:
        OTHER.finish(second)
        with pytest.raises(StoreError, match="already holds files"):
            NEW.finish(first)
    assert files(path) == OTHER.expected(tmp_path / "other")
    (refused,) = refused_sets(path.parent, NEW.spec.key)
    assert refused.spec == NEW.spec
    with NEW.begin(path.with_name("two")) as third, NEW.begin(path.with_name("three")):
        assert [refused.where for refused in refused_sets(path.parent, NEW.spec.key)] == [str(first.staging)]
        NEW.finish(third)


STRANGERS: dict[str, Callable[[Path], object]] = {
    "a hidden file among shards": lambda path: put(path / "patch/block3/view0/c/.notes"),
    "an array that is not listed": lambda path: put(path / "patch/block9/view0/c/0/0/0"),
    "a folder of photographs": lambda path: put(path / "images/train/cat/1.jpg"),
    "a folder elsewhere": lambda path: (path / "patch/mine").symlink_to(path.parent),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_a_set_with_other_files_is_not_begun_again(stranger: Callable[[Path], object], path: Path) -> None:
    stranger(OLD.make(path))
    before = files(path)
    with pytest.raises(StoreError, match=r"do not belong to a feature set \(.*move them away first"):
        NEW.begin(path, FeatureStore.open(path))
    assert files(path) == before
    assert not (path.parent / ".staging").exists()


@pytest.mark.parametrize("at_last", [False, True])
@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_a_set_with_other_files_is_not_replaced(
    stranger: Callable[[Path], object], at_last: bool, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    OLD.make(path)
    with NEW.begin(path, FeatureStore.open(path)) as writer:
        if at_last:
            before_call(0, lambda: stranger(path), monkeypatch, disk, "exchange")
        else:
            stranger(path)
        with pytest.raises(StoreError, match=r"do not belong to a feature set .* the finished set is in"):
            NEW.finish(writer)
        assert FeatureStore.open(path).spec == OLD.spec
        assert files(path).keys() > OLD.expected(tmp_path / "old").keys() or (path / "patch/mine").is_symlink()


def test_another_set_than_was_found_is_not_replaced(system: None, path: Path, tmp_path: Path) -> None:
    base = FeatureStore.open(OLD.make(tmp_path / "base"))
    shutil.copytree(base.path, path)
    with NEW.begin(path, base) as writer:
        shutil.rmtree(path)
        OTHER.make(tmp_path / "made/one")
        os.rename(tmp_path / "made/one", path)
        with pytest.raises(StoreError, match=r"another feature set than when this run began.* the finished set is in"):
            NEW.finish(writer)
    assert files(path) == OTHER.expected(tmp_path / "expected")


def test_the_file_that_dvc_writes_among_its_outs_stays(system: None, path: Path, tmp_path: Path) -> None:
    put(path / ".gitignore")
    (path / "images").mkdir()
    OLD.make(path)
    assert files(path) == {**OLD.expected(tmp_path / "old"), ".gitignore": b"mine"}
    NEW.make(path, FeatureStore.open(path))
    assert files(path) == {**NEW.expected(tmp_path / "new"), ".gitignore": b"mine"}
    assert not (path.parent / ".staging").exists()


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """For another process that is about to publish, or its claim."""
    monkeypatch.setattr(publishing, "LOOKS_S", 0.0)
    monkeypatch.setattr(publishing, "LOOK_S", 0)
    monkeypatch.setattr(claims, "has_ended", lambda content: True)


def before_rename(n: int, happens: Callable[[], object], patch: pytest.MonkeyPatch) -> Iterator[int]:
    """Something happens before the name after the first n is given; counts them."""
    patch.setattr(os, "exchange", exchange, raising=False)
    patch.setattr(disk, "exchange", lambda *names: os.exchange(*names))
    return before_call(n, happens, patch, os, "rename", "exchange")


def begin_again(replaces: bool, path: Path, tmp_path: Path) -> FeatureWriter:
    base = None
    if replaces:
        base = FeatureStore.open(OLD.make(tmp_path / "base"))
        shutil.copytree(base.path, path)
    writer = NEW.begin(path, base)
    for unit in writer.missing_units():
        NEW.write(writer, unit)
    return writer


@pytest.mark.usefixtures("_no_waiting", "system")
@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("n", range(6))
@pytest.mark.parametrize("replaces", [False, True])
def test_before_it_gives_a_name(
    n: int, replaces: bool, killed: bool, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed, or another finishes the set, which shares the work; a folder NAME.old of somebody else is not touched."""
    put(path.with_name("one.old") / "backup")
    writer = begin_again(replaces, path, tmp_path)
    other = NEW.begin(path, writer.taking.base)
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        renames = before_rename(n, interrupt if killed else lambda: other.finish(ATTRIBUTES), patch)
        writer.finish(ATTRIBUTES)
    if not killed:
        writer.close()
        other.finish(ATTRIBUTES)
    elif content_of(path / "zarr.json") is None or FeatureStore.open(path).spec != NEW.spec:
        with NEW.begin(path, FeatureStore.open(path) if path.exists() else None) as again:
            assert again.missing_units() == [], "nothing is lost"
            again.finish(ATTRIBUTES)
    discard_staging(path, NEW.spec.key)
    assert files(path) == NEW.expected(tmp_path / "new")
    assert files(path.with_name("one.old")) == {"backup": b"mine"}
    assert not (path.parent / ".staging").exists()
    assert n < 5 or next(renames) <= n, "more names than are tested"


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("n", [1, 2])
def test_killed_before_a_refused_set_has_its_name_again(
    n: int, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begin_again(False, path, tmp_path)
    put(path / "notes.txt")
    with monkeypatch.context() as patch:
        before_rename(n, interrupt, patch)
        with pytest.raises(KeyboardInterrupt if n == 1 else StoreError):
            writer.finish(ATTRIBUTES)
    with pytest.raises(StoreError, match="already holds files"):
        NEW.begin(path)
    (refused,) = refused_sets(path.parent, NEW.spec.key)
    assert refused.where == str(writer.staging)
    shutil.rmtree(path)
    with NEW.begin(path) as again:
        assert again.missing_units() == []
        again.finish(ATTRIBUTES)
    assert files(path) == NEW.expected(tmp_path / "new")


def test_cleaning_leaves_files_of_others(path: Path) -> None:
    """In the set, and what somebody has put where a set is staged."""
    NEW.make(path)
    put(path / "journal")
    discard_staging(path, NEW.spec.key)
    assert (path / "journal").read_text() == "mine"
    staging = path.parent / f".staging/one-{NEW.spec.key}"
    put(staging / "notes.txt")
    for clean in (lambda: discard_staging(path, NEW.spec.key), lambda: NEW.begin(path.with_name("one"))):
        with pytest.raises(StoreError):
            clean()
        assert files(staging) == {"notes.txt": b"mine"}


EARLIER = ("mark.json", "heads/*.json", "table.csv")
MINE = {"heads/notes.txt": b"mine", "notes.txt": b"mine"}


def write_result(place: ResultFolder, content: dict[str, bytes]) -> None:
    with place.written() as folder:
        (folder / "heads").mkdir()
        for name, data in content.items():
            (folder / name).write_bytes(data)


def first_result(folder: Path) -> ResultFolder:
    place = ResultFolder(folder, "mark.json", EARLIER)
    write_result(place, {"mark.json": b"1", "heads/a.json": b"1", "table.csv": b"1"})
    return place


@pytest.mark.usefixtures("system")
def test_an_earlier_result_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    first_result(out := tmp_path / "out")
    for name, content in MINE.items():
        (out / name).write_bytes(content)
    os.link(out / "table.csv", tmp_path / "cached")  # as DVC's cache may
    for new in ({"mark.json": b"2", "heads/b.json": b"2"}, {"mark.json": b"2", "table.csv": b"3"}):
        write_result(ResultFolder(out, "mark.json", EARLIER), new)
        assert files(out) == MINE | new
    assert (tmp_path / "cached").read_bytes() == b"1"
    with pytest.raises(FileNotFoundError):
        write_result(ResultFolder(out, "mark.json"), {"none/x": b""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cached", "out"], "nothing is left of one that failed"


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize(
    "meanwhile",
    [
        first_result,
        lambda folder: write_result(first_result(folder), {"mark.json": b"3"}),
        lambda folder: (folder.mkdir(), (folder / "mark.json").touch()),
    ],
    ids=["one", "two", "no result"],
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_result_that_came_meanwhile_is_not(meanwhile: Callable[[Path], object], begun: bool, tmp_path: Path) -> None:
    out, new = tmp_path / "out", {"mark.json": b"2", "heads/b.json": b"2"}
    if begun:
        write_result(ResultFolder(out, "mark.json"), {"mark.json": b"0"})
    place = ResultFolder(out, "mark.json", EARLIER)
    shutil.rmtree(out, ignore_errors=True)
    meanwhile(out)
    before = files(out)
    with pytest.raises(StoreError, match=r"that of this run is in .*\.unfinished/out\."):
        write_result(place, new)
    assert files(out) == before
    (kept,) = (tmp_path / ".unfinished").iterdir()
    assert files(kept) == new
