"""Room on disks, and the disk cache."""

import os
import shutil
from collections import namedtuple
from types import SimpleNamespace

import pytest

from pipelines.doctor import disk, disk_cache
from pipelines.doctor.machine import Machine
from tests.features import write_features
from tests.pipelines.doctor.said import says

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def room(monkeypatch):
    """Sets bytes free, bytes in all, and the files that may still be made."""

    def make(free, total, files=(900, 1000)):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(total, total - free, free))
        monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_favail=files[0], f_files=files[1]))

    return make


def test_here(tmp_path):
    finding = disk.check(Machine(tmp_path))
    assert finding.found.endswith("no feature sets here yet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "total", "files", "taken", "state", "words"),
    [
        (500e9, 1e12, (900, 1000), None, "ok", "the feature sets here take"),
        (40e9, 1e12, (900, 1000), None, "note", "the feature sets here take"),  # 4 %, but enough for another set
        (0.9e9, 10e9, (900, 1000), None, "problem", "the feature sets here take"),
        (2e9, 10e9, (900, 1000), 3e9, "note", "take 3 GB"),
        (2e9, 1e12, (900, 1000), 3e9, "problem", "take 3 GB"),
        (500e9, 1e12, (5, 1000), None, "problem", "5 of 1,000 files"),
        (500e9, 1e12, (0, 0), None, "ok", "the feature sets here take"),
    ],
)
def test_room(tmp_path, room, monkeypatch, free, total, files, taken, state, words):
    room(free, total, files)
    write_features(tmp_path / "features/set")
    if taken:
        monkeypatch.setattr("pipelines.store.find.nbytes_of", lambda folder: taken)
    finding = disk.check(Machine(tmp_path))
    says(finding, state, words)
    assert bool(finding.remedy) == (state != "ok")
    assert "no feature sets" not in finding.found
    assert "beyondcls store rm" in finding.remedy or not taken


def test_each_disk_is_named(tmp_path, room, monkeypatch):
    room(500e9, 1e12)
    (tmp_path / "common").mkdir()
    (tmp_path / "params.yaml").write_text("store: {root: common, cache: {folder: near, gb: 50}}")
    machine = Machine(tmp_path)
    assert disk.check(machine).found.startswith("500 GB free (50%)")  # all on one
    monkeypatch.setattr(disk, "disks", lambda machine: [["features", "store.cache"], ["store.root"]])
    assert disk.check(machine).found.startswith("features, store.cache: 500 GB free (50%); store.root: 500 GB free")
    assert disk.places(machine)["store.root"] == tmp_path / "common"
    assert disk.places(machine)["store.cache"] == tmp_path / "near"


def test_two_disks(tmp_path):
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    (tmp_path / "params.yaml").write_text("store: {root: /dev/shm/beyondcls-none}")
    assert disk.disks(Machine(tmp_path)) == [["features"], ["store.root"]]


class TestDiskCache:
    def test_none(self, tmp_path):
        assert disk_cache.check(Machine(tmp_path)) is None
        (tmp_path / "params.yaml").write_text("store: {root: null, cache: {folder: near, gb: 50}}")
        assert disk_cache.check(Machine(tmp_path)) is None

    @pytest.mark.parametrize(("free", "state"), [(49.5e9, "note"), (60e9, "ok")])
    def test_room(self, tmp_path, room, free, state):
        room(free, 1e12)
        (tmp_path / "params.yaml").write_text("store: {root: 's3://bucket', cache: {folder: near, gb: 50}}")
        finding = disk_cache.check(Machine(tmp_path))
        assert finding.state == state
        assert "0 B of 50 GB" in finding.found
        assert ("store.cache.gb" in finding.remedy) == (state == "note")

    def test_what_it_holds_is_room_for_it(self, tmp_path, room):
        room(1000, 1e12)
        (tmp_path / "params.yaml").write_text("store: {root: 's3://bucket', cache: {folder: near, gb: 0.0000015}}")
        (tmp_path / "near").mkdir()
        (tmp_path / "near/file").write_bytes(bytes(600))
        assert disk_cache.check(Machine(tmp_path)).state == "ok"

    def test_not_ours(self, tmp_path, room, monkeypatch):
        room(60e9, 1e12)
        (tmp_path / "params.yaml").write_text("store: {root: 's3://bucket', cache: {folder: near, gb: 50}}")
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        assert disk_cache.check(Machine(tmp_path)).state == "problem"
