"""Files that are written past the page cache have the same bytes for parts of any lengths and addresses."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from store.places import disk
from store.places.disk import write_synced
from store.places.place import ALIGNMENT, aligned_memory, aligned_zeros, is_aligned

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


def test_zeros() -> None:
    values = aligned_zeros((3, 1000), "float16")
    assert values.shape == (3, 1000)
    assert not values.any()
    assert is_aligned(memoryview(values.reshape(-1).view(np.uint8).data))
    values[:] = 1
    assert aligned_zeros((0, 5), "int64").shape == (0, 5)
