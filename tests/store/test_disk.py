"""Files are whole or not there, also past the page cache; links and exchanges work where the system has none."""

import ctypes
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from store import StoreError
from store.places import LocalFolder, disk
from store.places.disk import write_synced
from store.places.place import ALIGNMENT, aligned_memory, is_aligned


def test_a_file_is_replaced_not_changed(tmp_path: Path) -> None:
    """Who has the old one open, or linked, keeps it."""
    file, other = tmp_path / "a/b/file", tmp_path / "other"
    disk.write_file(file, [b"ol", memoryview(b"d"), b""])
    os.link(file, other)
    disk.write_file(file, [b"new"])
    assert (file.read_bytes(), other.read_bytes()) == (b"new", b"old")
    assert [p.name for p in file.parent.iterdir()] == ["file"]


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    disk.write_file(tmp_path / "file", [b"0123456", b"789"])
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_link_to_what_a_symlink_means(tmp_path: Path) -> None:
    """As DVC may keep files; the symlink may go, its meaning is ours."""
    (tmp_path / "cached").write_bytes(b"x")
    (tmp_path / "source").symlink_to(tmp_path / "cached")
    LocalFolder(tmp_path).link(tmp_path / "source", "target")
    assert not (tmp_path / "target").is_symlink()
    assert (tmp_path / "target").stat().st_ino == (tmp_path / "cached").stat().st_ino


def _no_link(*_: object) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("system", ["renameat2", "refused", "none"])
def test_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    class Libc:
        if system == "refused":
            renameat2 = staticmethod(lambda *_: -1)

    if system != "renameat2":
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc())
    one, other = tmp_path / "one", tmp_path / "sub" / "other"
    for folder in (one, other):
        folder.mkdir(parents=True)
        (folder / "name").write_text(folder.name)
    disk.exchange(one, other)
    assert ((one / "name").read_text(), (other / "name").read_text()) == ("other", "one")
    assert sorted(p.name for p in (tmp_path / "sub").iterdir()) == ["other"]


@pytest.mark.parametrize("linked", [True, False])
def test_a_name_that_is_taken_stays(linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where files cannot be linked."""
    if not linked:
        monkeypatch.setattr(os, "link", _refuse)
    for content in (b"first", b"second"):
        (tmp_path / "unnamed").write_bytes(content)
        assert disk.place_file(tmp_path / "unnamed", tmp_path / "folder/name") == (content == b"first")
        assert (tmp_path / "folder/name").read_bytes() == b"first"
        assert (tmp_path / "unnamed").exists() == (content == b"second")
    with pytest.raises(FileNotFoundError):
        disk.place_file(tmp_path / "none", tmp_path / "other/name")
    assert not (tmp_path / "other").exists()


def _refuse(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_where_results_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made. Root may write anywhere, so what the system says is in its place."""
    (tmp_path / "file").touch()
    disk.check_writable(tmp_path / "a/b/c")
    disk.check_writable(tmp_path)
    for name in ("file", "file/below/it"):
        with pytest.raises(StoreError, match=r"cannot be written: .*/file: Not a directory"):
            disk.check_writable(tmp_path / name)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: os.fspath(path) != str(tmp_path))
        with pytest.raises(StoreError, match=f"cannot be written: {tmp_path}: Permission denied; see whose it is"):
            disk.check_writable(tmp_path / "a/b")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(StoreError, match="Read-only file system; name a place on a file system that takes files"):
        disk.check_writable(tmp_path / "a/b")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


# -- past the page cache: the same bytes for parts of any lengths and addresses ------------------------------------------

STEP = 4 * ALIGNMENT


@pytest.fixture(autouse=True)
def _short_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "DIRECT_NBYTES", STEP)


def _part(nbytes: int, aligned: bool, seed: int) -> memoryview:
    memory = aligned_memory(nbytes + ALIGNMENT)
    view = memory[:nbytes] if aligned else memory[24 : 24 + nbytes]
    view[:] = np.random.default_rng(seed).bytes(nbytes)
    return view


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [(0, True)],
        [(1, False)],
        [(ALIGNMENT, True)],
        [(STEP, False), (0, False), (17, False)],
        [(3 * STEP + 100, False), (2 * STEP + 5, True), (STEP, True), (7, False)],
        [(5 * STEP, True), (3 * STEP, True), (900, False)],
        [(2 * STEP, False), (2 * STEP, True), (2 * STEP, False), (2 * STEP, True)],
        [(STEP - 1, True), (1, True), (STEP, True)],
    ],
    ids=str,
)
def test_same_bytes(parts: list[tuple[int, bool]], tmp_path: Path) -> None:
    views = [_part(nbytes, aligned, i) for i, (nbytes, aligned) in enumerate(parts)]
    assert all(is_aligned(view) == aligned for view, (nbytes, aligned) in zip(views, parts, strict=True) if nbytes)
    write_synced(tmp_path / "file", iter(views), direct=True)
    assert (tmp_path / "file").read_bytes() == b"".join(views)
    assert os.listdir(tmp_path) == ["file"]


def test_it_is_direct_where_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags, real = [], os.open

    def opened(path: str, given: int, *mode: int) -> int:
        flags.append(given)
        return real(path, given, *mode)

    with monkeypatch.context() as patch:  # pytest removes tmp_path before it undoes the patches of a fixture that came first
        patch.setattr(os, "open", opened)
        write_synced(tmp_path / "file", [bytes(3 * STEP)], direct=True)
        assert flags[0] & os.O_DIRECT
        write_synced(tmp_path / "file", [bytes(3 * STEP)])
    assert sum(bool(given & os.O_DIRECT) for given in flags) == 1


def test_without_direct_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a memory file system: the page cache is used."""
    real = os.open

    def refusing(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        write_synced(tmp_path / "file", [b"x" * (STEP + 1)], direct=True)
    assert (tmp_path / "file").read_bytes() == b"x" * (STEP + 1)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_full_disk(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = iter(range(100)), os.write

    def write(descriptor: int, view: memoryview) -> int:
        if next(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, view)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        write_synced(tmp_path / "file", [_part(5 * STEP, False, 0)], direct=True)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_another_process_makes_and_removes_meanwhile_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = list[str](), os.mkdir

    def after_another(path: Path, mode: int) -> None:
        made.append(path.name)
        if made.count(path.name) == 1:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", after_another)
    disk.make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    (tmp_path / "file").touch()
    for folder in ("file", "file/c"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            disk.make_folder(tmp_path / folder)
