"""Disks, file systems, and the folder or bucket that machines share."""

import errno
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.doctor import places
from pipelines.doctor.machine import Machine
from tests.features import write_features


def store_root(folder: Path, root: object, **options: Any) -> Any:
    """The one finding on a root."""
    (folder / "params.yaml").write_text(f"store: {{root: '{root}'}}")
    (finding,) = places.store_root(Machine(folder, **options))
    assert f"from {folder}/params.yaml" in finding.found or finding.state == "note"
    return finding


@pytest.mark.parametrize(
    ("free", "total", "taken", "states"),
    [
        (500e9, 1e12, 1e9, ["ok", "ok", "ok"]),
        (80e9, 1e12, 90e9, ["note", "ok", "note"]),  # less than the sets here take, and the cache may
        (40e9, 1e12, 1e9, ["note", "note", "note"]),
        (0.9e9, 10e9, 0, ["problem", "problem", "problem"]),
    ],
)
def test_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, total: float, taken: float, states: list[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=total, free=free))
    monkeypatch.setattr("pipelines.store.find.nbytes_of", lambda folder: taken if folder.name == "set" else 0)
    write_features(tmp_path / "features/set")
    (tmp_path / "params.yaml").write_text("store: {root: common, cache: {folder: near, gb: 85}}")
    findings = list(places.disk(Machine(tmp_path)))
    assert [finding.found.partition(":")[0] for finding in findings] == ["features", "store.root", "store.cache"]
    assert [finding.state for finding in findings] == states


def refuse(number: int) -> Callable[..., None]:
    def call(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


BROKEN: list[tuple[str, Any, str, str]] = [
    ("", None, "ok", ""),
    ("store.places.disk.place_file", lambda path, target: not os.replace(path, target), "problem", "replaces another"),
    ("store.places.disk.exchange", refuse(errno.EXDEV), "problem", os.strerror(errno.EXDEV)),
    ("store.places.disk.exchange", lambda one, other: None, "problem", "keeps what it held"),
    ("tempfile.TemporaryDirectory", refuse(errno.EACCES), "note", "Permission denied"),
]


@pytest.mark.parametrize(("broken", "by", "state", "named"), BROKEN)
def test_publishing_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, by: Any, state: str, named: str
) -> None:
    """In features/, and in a root that is a folder."""
    (tmp_path / "common").mkdir()
    if broken:
        monkeypatch.setattr(broken, by)
    (of_features,) = places.file_system(Machine(tmp_path))
    of_root = store_root(tmp_path, "common")
    assert (of_features.state, of_root.state) == (state, state)
    assert named in of_features.found
    assert list((tmp_path / "common").iterdir()) == []
    assert (store_root(tmp_path, "not-mounted").state, (tmp_path / "not-mounted").exists()) == ("note", False)


def test_the_nearest_mount_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [("/", "ext4"), (str(tmp_path), "nfs"), (str(tmp_path), "nfs4"), (f"{tmp_path}/x", "xfs")]
    found = [SimpleNamespace(mountpoint=where, fstype=kind) for where, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    assert "nfs4 (network)" in next(iter(places.file_system(Machine(tmp_path)))).found


def test_no_root(tmp_path: Path) -> None:
    assert list(places.store_root(Machine(tmp_path))) == []


class TestAddress:
    @pytest.fixture
    def root(self) -> str:
        return f"memory://{uuid.uuid4().hex}/sets"

    def test_one_that_refuses_to_replace(self, tmp_path: Path, root: str) -> None:
        assert store_root(tmp_path, root).state == "ok"
        assert MemoryFileSystem().find(root) == [], "nothing is left there"
        assert store_root(tmp_path, root, offline=True).state == "note"

    def test_one_that_ignores_it(self, tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = MemoryFileSystem.pipe_file
        monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, value, **_: real(self, path, value))
        finding = store_root(tmp_path, root)
        assert (finding.state, "If-None-Match" in finding.found) == ("note", True)
        assert MemoryFileSystem().find(root) == []

    @pytest.mark.parametrize(("method", "state"), [("pipe_file", "note"), ("ls", "raises")])
    def test_one_that_does_not_let_us(
        self, tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch, method: str, state: str
    ) -> None:
        def deny(*_: object, **__: object) -> None:
            raise OSError("Denied for https://me:hunter2@host")

        monkeypatch.setattr(MemoryFileSystem, method, deny)
        if state == "raises":
            with pytest.raises(Exception, match="cannot be listed"):
                store_root(tmp_path, root)
        else:
            finding = store_root(tmp_path, root)
            assert (finding.state, "hunter2" in finding.found) == (state, False)

    def test_a_protocol_that_is_unknown(self, tmp_path: Path) -> None:
        with pytest.raises(Exception, match="s4://bucket cannot be opened"):
            store_root(tmp_path, "s4://bucket")
