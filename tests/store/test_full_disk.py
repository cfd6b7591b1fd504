"""A full disk: a message with numbers, no halves, and the same bytes once there is space."""

import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from store import FeatureStore, StoreError
from store.places.disk import PARTIAL
from store.writing.publishing import discard_staging
from tests.folders import files
from tests.store.conftest import ATTRIBUTES
from tests.store.test_disk import refuse
from tests.store.tiny import Tiny

TINY = Tiny(90, (3, 5))
MESSAGE = r"no space left while writing .*: what is written is safe in .*; ([\d.e-]+) GB more are needed, [\d.e-]+ GB are free"
REMEDIES = {
    errno.ENOSPC: ". Free some, and give",
    errno.EDQUOT: ", but a quota is used up (`quota -s` shows yours). Remove files, or have it raised, and give",
    errno.EFBIG: ", but a file may not be as large (`ulimit -f` shows the limit). Have it raised, and give",
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


@pytest.mark.parametrize(("call", "code"), [("write", errno.ENOSPC), ("fsync", errno.EDQUOT), ("write", errno.EFBIG)])
def test_space_runs_out_at_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    monkeypatch.setattr("store.format.layout.KINDS", ("images", "patch"))
    expected = TINY.expected(tmp_path / "expected")
    constants = sum(
        len(data) for name, data in expected.items() if "/c/" in name and name.partition("/c/")[0] in TINY.constants
    )
    for n in range(0, 1000, 3):
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
    assert n > 30


@pytest.mark.parametrize(
    ("code", "left", "total", "remedy"),
    [
        (errno.ENOSPC, 0, 12, r"but only 0 of 12 inodes \(`df -i`\)\. Remove files, many small ones first, and give"),
        (errno.ENOSPC, 99, 10_000, "but only 99 of 10,000 inodes"),
        (errno.ENOSPC, 100, 10_000, r"\. Free some, and give"),
        (errno.ENOSPC, 0, 0, r"\. Free some, and give"),  # a file system without a limit
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
    """Where files cannot be linked. The old set is as it was."""
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
