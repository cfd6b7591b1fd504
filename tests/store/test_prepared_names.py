"""Links that others have prepared under names of ours: they are refused or replaced, and never written through."""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store import StoreError
from store.format.reader import FeatureStore
from store.places import LocalFolder
from store.places.cache import CachedSet, DiskCache
from store.places.disk import PARTIAL, make_folder, open_own, partial_name, write_file, write_synced
from store.writing.claims import alone
from store.writing.publishing import discard
from store.writing.results import ResultFolder
from tests.store.test_disk import refuse
from tests.store.tiny import Tiny

TINY = Tiny()
KEY = TINY.spec.key


def write(path: Path) -> FeatureStore:
    with TINY.begin(path) as target:
        for unit in target.missing_units():
            assert target.claim(unit)
        TINY.finish(target)
    return FeatureStore.open(path)


def result(folder: Path) -> None:
    with ResultFolder(folder, "mark.json").written() as scratch:
        (scratch / "mark.json").write_text("1")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of somebody, in a folder with other files."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "victim").write_text("precious")
    return folder / "victim"


def intact(victim: Path) -> bool:
    return victim.read_text() == "precious" and [p.name for p in victim.parent.iterdir()] == ["victim"]


PREPARED: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda place, victim: place.symlink_to(victim),
    "dangling": lambda place, victim: place.symlink_to(victim.with_name("new")),
    "hard link": lambda place, victim: os.link(victim, place),
    "fifo": lambda place, victim: os.mkfifo(place),
    "folder": lambda place, victim: place.mkdir(),
}


def copy(file: Path) -> None:
    (file.parent / "source").write_bytes(b"new")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", lambda *_: refuse(errno.EXDEV))
        LocalFolder(file.parent).link(file.parent / "source", file.name)


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "fifo"])
@pytest.mark.parametrize(
    ("write_new", "prepared"),
    [
        (lambda file: write_file(file, [b"new"]), "x.json"),
        (lambda file: write_file(file, [b"new"]), f"x.json{PARTIAL}"),
        (lambda file: write_synced(file, [b"new"]), "x.json"),
        (lambda file: write_synced(file, [b"new"], direct=True), "x.json"),
        (copy, f"x.json{PARTIAL}"),
    ],
    ids=["replaced", "beside", "new", "past the page cache", "copied"],
)
def test_a_new_file_is_new(kind: str, write_new: Callable[[Path], None], prepared: str, victim: Path, tmp_path: Path) -> None:
    PREPARED[kind](tmp_path / prepared, victim)
    write_new(tmp_path / "x.json")
    assert intact(victim)
    assert not (tmp_path / "x.json").is_symlink()
    assert (tmp_path / "x.json").read_bytes() == b"new"


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda place: os.close(open_own(place / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)), "journal"),
        (lambda place: CachedSet(DiskCache(place, 1 << 20), "set"), "lock"),
        (lambda place: CachedSet(DiskCache(place, 1 << 20), "set"), "set/in-use"),
    ],
    ids=["log", "lock of the cache", "set of the cache"],
)
def test_a_name_known_beforehand(use: Callable[[Path], object], name: str, kind: str, victim: Path, tmp_path: Path) -> None:
    """Of what is opened again and again; a pipe would be waited for."""
    place = tmp_path / "place" / name
    place.parent.mkdir(parents=True)
    PREPARED[kind](place, victim)
    with pytest.raises((StoreError, IsADirectoryError), match=r"is a link, or no file.*`ls -l`|Is a directory|cannot be"):
        use(tmp_path / "place")
    assert intact(victim)


INSIDE = ("", "/.writing", "/.writing/unnamed", "/.writing/claims", "/.writing/units", "/patch")


@pytest.mark.parametrize("name", [".staging", *(f".staging/one-{KEY}{inside}" for inside in INSIDE)])
def test_what_is_staged_is_staged_here(name: str, victim: Path, tmp_path: Path) -> None:
    place = tmp_path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(victim.parent)
    with pytest.raises(StoreError, match=r"is a link.*remove it"):
        write(tmp_path / "one")
    assert not (tmp_path / "one").exists()
    assert intact(victim)


@pytest.mark.parametrize("name", ["header.json", "units/1.json", "claims/0-0"])
def test_a_link_in_the_place_of_what_writers_keep(name: str, victim: Path, tmp_path: Path) -> None:
    with TINY.begin(tmp_path / "one") as target:
        place = target.staging / ".writing" / name
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(victim)
        with contextlib.suppress(StoreError):
            target.claim(0)
            TINY.finish(target)
    with contextlib.suppress(StoreError):
        TINY.begin(tmp_path / "one").close()
    assert intact(victim)


@pytest.mark.parametrize(
    ("link", "use"),
    [
        (".staging/one.claim", lambda folder: alone(folder / ".staging/one", "one").__enter__()),
        ("cache/set", lambda folder: CachedSet(DiskCache(folder / "cache", 1 << 20), "set")),
        (".unfinished", lambda folder: result(folder / "out")),
        (".staging/old", lambda folder: discard(folder / ".staging/old")),
    ],
)
def test_a_link_in_the_place_of_a_folder(link: str, use: Callable[[Path], object], victim: Path, tmp_path: Path) -> None:
    make_folder((tmp_path / link).parent)
    (tmp_path / link).symlink_to(victim.parent)
    with pytest.raises(StoreError, match=rf"{link}.* is a link"):
        use(tmp_path)
    assert intact(victim)


def test_a_folder_of_another_user_where_everybody_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in /tmp; in a folder that a group shares, a colleague's unfinished set is gone on with."""
    (tmp_path / ".staging").mkdir()
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    make_folder(tmp_path / ".staging")
    os.chmod(tmp_path, 0o1777)
    make_folder(tmp_path / ".staging")  # of the owner of the folder itself
    (tmp_path / "tmp").mkdir()
    os.chmod(tmp_path / "tmp", 0o1777)
    os.mkdir(tmp_path / "tmp/.staging")
    real = Path.lstat

    def other(path: Path) -> os.stat_result:
        stat = real(path)
        return os.stat_result((*stat[:4], user + 1, *stat[5:])) if path.name == ".staging" else stat

    monkeypatch.setattr(Path, "lstat", other)
    with pytest.raises(StoreError, match=rf"belongs to another user \(id {user + 1}\).*folder of your own"):
        make_folder(tmp_path / "tmp/.staging/x")


@pytest.mark.parametrize(("use", "name"), [(lambda folder: write(folder / "one"), "one"), (result, "mark.json")])
def test_links_of_users_are_followed(use: Callable[[Path], object], name: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "disk")
    use(tmp_path / "linked")
    assert os.listdir(tmp_path / "disk") == [name]
    assert (tmp_path / "linked").is_symlink()


def test_what_killed_processes_left_goes(tmp_path: Path) -> None:
    file = tmp_path / "x[1].json"
    old, new = partial_name(file), partial_name(file)
    for path in (old, new, tmp_path / f"x1.json.{'0' * 16}{PARTIAL}"):
        path.write_text("half")
    os.utime(old, (0, time.time() - 7200))
    write_file(file, [b"{}"])
    assert not old.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([file.name, new.name, f"x1.json.{'0' * 16}{PARTIAL}"])


def test_a_file_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half"
        raise StoreError("damaged")

    (tmp_path / "x").write_text("before")
    with pytest.raises(StoreError, match="damaged"):
        write_file(tmp_path / "x", parts())
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("x", "before")]
