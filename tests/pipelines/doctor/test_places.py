"""Disks, file systems, and the folder or bucket that machines share."""

import os
import shutil
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.doctor import places
from pipelines.doctor.machine import Machine
from store import StoreError
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
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Mock(total=total, free=free))
    monkeypatch.setattr("pipelines.store.find.nbytes_of", lambda folder: taken if folder.name == "set" else 0)
    write_features(tmp_path / "features/set")
    (tmp_path / "params.yaml").write_text("store: {root: common, cache: {folder: near, gb: 85}}")
    findings = list(places.disk(Machine(tmp_path)))
    assert [finding.found.partition(":")[0] for finding in findings] == ["features", "store.root", "store.cache"]
    assert [finding.state for finding in findings] == states


@pytest.mark.parametrize(
    ("broken", "by", "state", "named"),
    [
        ("", None, "ok", ""),
        ("store.places.disk.place_file", lambda path, target: not os.replace(path, target), "problem", "replaces another"),
        ("store.places.disk.exchange", Mock(side_effect=OSError(18, "cross-device")), "problem", "cross-device"),
        ("store.places.disk.exchange", Mock(), "problem", "keeps what it held"),
        ("tempfile.TemporaryDirectory", Mock(side_effect=OSError(13, "denied")), "note", "denied"),
    ],
    ids=["sound", "replaces", "no-exchange", "exchanges-nothing", "denied"],
)
def test_publishing_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, by: Any, state: str, named: str
) -> None:
    """In features/, and in a root that is a folder."""
    (tmp_path / "common").mkdir()
    if broken:
        monkeypatch.setattr(broken, by)
    (of_features,) = places.file_system(Machine(tmp_path))
    assert (of_features.state, store_root(tmp_path, "common").state) == (state, state)
    assert named in of_features.found
    assert list((tmp_path / "common").iterdir()) == []
    assert (store_root(tmp_path, "not-mounted").state, (tmp_path / "not-mounted").exists()) == ("note", False)


def test_the_nearest_mount_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [("/", "ext4"), (str(tmp_path), "nfs"), (str(tmp_path), "nfs4"), (f"{tmp_path}/x", "xfs")]
    found = [Mock(mountpoint=where, fstype=kind) for where, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    assert "nfs4 (network)" in next(iter(places.file_system(Machine(tmp_path)))).found


class TestAddress:
    @pytest.fixture
    def root(self) -> str:
        return f"memory://{uuid.uuid4().hex}/sets"

    @pytest.mark.parametrize(("ignores", "state"), [(False, "ok"), (True, "note")])
    def test_whether_it_refuses_to_replace(
        self, tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch, ignores: bool, state: str
    ) -> None:
        real = MemoryFileSystem.pipe_file
        if ignores:
            monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, value, **_: real(self, path, value))
        assert list(places.store_root(Machine(tmp_path))) == [], "there is no root yet"
        finding = store_root(tmp_path, root)
        assert (finding.state, "If-None-Match" in finding.found) == (state, ignores)
        assert MemoryFileSystem().find(root) == [], "nothing is left there"
        assert store_root(tmp_path, root, offline=True).state == "note"

    def test_one_that_does_not_let_us(self, tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        deny = Mock(side_effect=OSError("Denied for https://me:hunter2@host"))
        monkeypatch.setattr(MemoryFileSystem, "pipe_file", deny)
        finding = store_root(tmp_path, root)
        assert (finding.state, "hunter2" in finding.found) == ("note", False)
        monkeypatch.setattr(MemoryFileSystem, "ls", deny)
        for address, says in ((root, "cannot be listed"), ("s4://bucket", "s4://bucket cannot be opened")):
            with pytest.raises(StoreError, match=says):
                store_root(tmp_path, address)
