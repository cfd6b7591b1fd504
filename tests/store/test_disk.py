"""Files are whole or not there, also past the page cache; a full disk has a message with numbers, and keeps no halves."""

import ctypes
import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest

from store import FeatureStore, StoreError
from store.places import LocalFolder, disk
from store.places.disk import PARTIAL, write_synced
from store.places.place import ALIGNMENT, aligned_memory, is_aligned
from store.writing.publishing import discard_staging
from tests.folders import files
from tests.store.conftest import ATTRIBUTES
from tests.store.test_writing import before_call
from tests.store.tiny import Tiny


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


def refuse(code: int) -> NoReturn:
    raise OSError(code, os.strerror(code))


@pytest.mark.parametrize("linked", [True, False])
def test_a_name_that_is_taken_stays(linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where files cannot be linked."""
    if not linked:
        monkeypatch.setattr(os, "link", lambda *_: refuse(errno.EPERM))
    for content in (b"first", b"second"):
        (tmp_path / "unnamed").write_bytes(content)
        assert disk.place_file(tmp_path / "unnamed", tmp_path / "folder/name") == (content == b"first")
        assert (tmp_path / "folder/name").read_bytes() == b"first"
        assert (tmp_path / "unnamed").exists() == (content == b"second")
    with pytest.raises(FileNotFoundError):
        disk.place_file(tmp_path / "none", tmp_path / "other/name")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("libc", [SimpleNamespace(renameat2=lambda *_: -1), SimpleNamespace()], ids=["refused", "none"])
def test_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libc: SimpleNamespace) -> None:
    """Where the system cannot do it at once."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: libc)
    one, other = tmp_path / "one", tmp_path / "sub" / "other"
    for folder in (one, other):
        folder.mkdir(parents=True)
        (folder / "name").write_text(folder.name)
    disk.exchange(one, other)
    assert ((one / "name").read_text(), (other / "name").read_text()) == ("other", "one")
    assert sorted(p.name for p in (tmp_path / "sub").iterdir()) == ["other"]


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


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize(
    "parts",
    [
        [],
        [(1, False)],
        [(STEP, False), (0, False), (17, False)],
        [(3 * STEP + 100, False), (2 * STEP + 5, True), (STEP, True), (7, False)],
        [(5 * STEP, True), (3 * STEP, True), (900, False)],
        [(STEP - 1, True), (1, True), (STEP, True)],
    ],
    ids=str,
)
def test_the_same_bytes(
    parts: list[tuple[int, bool]], is_direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the page cache must be used, as on a memory file system."""
    views, flags, real = [], list[int](), os.open
    for i, (nbytes, aligned) in enumerate(parts):
        memory = aligned_memory(nbytes + ALIGNMENT)
        views.append(memory[:nbytes] if aligned else memory[24 : 24 + nbytes])
        views[-1][:] = np.random.default_rng(i).bytes(nbytes)
        assert is_aligned(views[-1]) == (aligned and nbytes > 0)

    def opened(path: str, given: int, *mode: int) -> int:
        if given & os.O_DIRECT and not is_direct:
            refuse(errno.EINVAL)
        flags.append(given & os.O_DIRECT)
        return real(path, given, *mode)

    with monkeypatch.context() as patch:  # pytest removes tmp_path before it undoes the patches of a fixture that came first
        patch.setattr(os, "open", opened)
        write_synced(tmp_path / "file", iter(views), direct=True)
        write_synced(tmp_path / "other", [])
    assert list(map(bool, flags)) == [is_direct, False]
    assert (tmp_path / "file").read_bytes() == b"".join(views)
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


def test_a_folder_that_another_process_makes_and_removes_meanwhile_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def exists() -> None:
            raise FileExistsError(errno.EEXIST, "File exists", str(tmp_path / "a"))

        before_call(1, exists, patch, os, "mkdir")
        disk.make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    (tmp_path / "file").touch()
    for folder in ("file", "file/c"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            disk.make_folder(tmp_path / folder)


# -- a full disk --------------------------------------------------------------------------------------------------------

TINY = Tiny(90, (3, 5))
MESSAGE = r"no space left while writing .*: what is written is safe in .*; ([\d.e-]+) GB more are needed, [\d.e-]+ GB are free"
REMEDIES = {
    errno.ENOSPC: ". Free some, and give",
    errno.EDQUOT: ", but a quota is used up (`quota -s` shows yours). Remove files, or have it raised, and give",
}


class Limited:
    """A call that succeeds `n` times; then half of what is to be written fits, then nothing."""

    def __init__(self, call: str, n: int, code: int):
        self.real, self.left, self.code, self.refused = getattr(os, call), n, code, False

    def __call__(self, descriptor: int, *data: memoryview) -> int:
        self.left -= 1
        if self.left >= 0:
            return self.real(descriptor, *data)
        self.refused = True
        if data and self.left == -1 and len(data[0]) > 1:
            return self.real(descriptor, data[0][: len(data[0]) // 2])
        return refuse(self.code)


@pytest.mark.parametrize(("call", "code"), [("write", errno.ENOSPC), ("fsync", errno.EDQUOT)])
def test_space_runs_out_at_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    monkeypatch.setattr("store.format.layout.KINDS", ("images", "patch"))
    expected = TINY.expected(tmp_path / "expected")
    constants = sum(len(data) for name, data in expected.items() if name.partition("/c/")[0] in TINY.constants)
    for n in range(0, 1000, 5):
        path, written, limited, message = tmp_path / str(n) / "one", 0, Limited(call, n, code), ""
        with monkeypatch.context() as patch:
            patch.setattr(os, call, limited)
            try:
                with TINY.begin(path) as writer:
                    for unit in writer.missing_units():
                        assert writer.claim(unit)
                        TINY.write(writer, unit)
                        written += 1
                    writer.finish(ATTRIBUTES)
            except StoreError as error:
                message, cause = str(error), error.__cause__
        if message:
            counts = re.search(MESSAGE, message)
            assert counts is not None, message
            assert isinstance(cause, OSError)
            assert REMEDIES[cause.errno or 0] in message
            missing = sum(a.nbytes(unit) for a in TINY.layouts for unit in range(written, 3))
            needed = [missing, missing + constants] if not written else [missing]  # these are written first
            assert any(float(counts[1]) == pytest.approx(nbytes / 1e9, rel=1e-2) for nbytes in needed), message
        assert not list(path.parent.rglob(f"*{PARTIAL}"))
        if not limited.refused:
            assert files(path) == expected
            break
        if not path.exists():
            TINY.make(path)
        discard_staging(path, TINY.spec.key)
        assert files(path) == expected
    assert n >= 30


@pytest.mark.parametrize(
    ("code", "left", "total", "remedy"),
    [
        (errno.ENOSPC, 0, 12, r"but only 0 of 12 inodes \(`df -i`\)\. Remove files, many small ones first, and give"),
        (errno.ENOSPC, 99, 10_000, "but only 99 of 10,000 inodes"),
        (errno.ENOSPC, 100, 10_000, r"\. Free some, and give"),
        (errno.ENOSPC, 0, 0, r"\. Free some, and give"),  # a file system without a limit
        (errno.EFBIG, 0, 0, r"a file may not be as large \(`ulimit -f`"),
        (errno.EIO, 0, 0, ""),
    ],
)
def test_files_run_out_before_bytes_or_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, left: int, total: int, remedy: str
) -> None:
    stat = SimpleNamespace(f_bavail=1 << 30, f_frsize=4096, f_files=total, f_favail=left)
    with TINY.begin(tmp_path / "one") as writer:
        monkeypatch.setattr(os, "write", lambda *_: refuse(code))
        monkeypatch.setattr(os, "statvfs", lambda _: stat)
        space, other = rf"no space left while writing .* 4\.4e\+03 GB are free.*{remedy}", "Input/output"
        with pytest.raises((StoreError, OSError), match=space if remedy else other):
            TINY.write(writer, 0)
    assert not list(tmp_path.rglob(f"*{PARTIAL}"))


def test_a_copied_base_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Tiny(90, (3,)).make(tmp_path / "one")
    old, expected = files(path), TINY.expected(tmp_path / "expected")
    monkeypatch.setattr(os, "link", lambda *_: refuse(errno.EPERM))
    with monkeypatch.context() as patch, TINY.begin(path, FeatureStore.open(path)) as writer:
        patch.setattr("store.places.disk.write_synced", lambda *_, **__: refuse(errno.ENOSPC))
        with pytest.raises(StoreError, match="no space left while writing"):
            TINY.write(writer, 0)
    assert files(path) == old
    TINY.make(path, FeatureStore.open(path))
    assert files(path) == expected
