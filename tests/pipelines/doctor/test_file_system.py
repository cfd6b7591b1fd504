"""What a file system can do."""

import errno
import fcntl
import os
import tempfile
from types import SimpleNamespace

import psutil
import pytest

from pipelines.doctor import file_system
from pipelines.doctor.here import Here


@pytest.fixture
def mounted(monkeypatch):
    def make(kind, options="rw"):
        mounts = [SimpleNamespace(mountpoint="/", fstype=kind, opts=options)]
        monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)

    return make


def test_here(tmp_path):
    finding = file_system.check(Here(tmp_path))
    assert finding.state in ("ok", "note"), finding  # memory file systems may lack O_DIRECT
    assert "locks" in finding.found
    assert list(tmp_path.iterdir()) == []  # cleaned up


def refuse(number):
    def call(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(("kind", "hint"), [("ext4", False), ("lustre", True)])
def test_no_locks(tmp_path, monkeypatch, mounted, kind, hint):
    mounted(kind)
    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOSYS))
    finding = file_system.check(Here(tmp_path))
    assert finding.state == "problem"
    assert "no file locks" in finding.found
    assert "give an --out on a local disk" in finding.remedy
    assert ("mount with -o flock" in finding.remedy) == hint


def test_locks_that_keep_nobody_out(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
    finding = file_system.check(Here(tmp_path))
    assert finding.state == "problem"
    assert "file locks keep nobody out" in finding.found


@pytest.mark.parametrize("exchange", [refuse(errno.EXDEV), lambda one, other: None])
def test_no_renames(tmp_path, monkeypatch, exchange):
    monkeypatch.setattr("store.disk.exchange", exchange)
    finding = file_system.check(Here(tmp_path))
    assert finding.state == "problem"
    assert "renamed" in finding.found


def test_no_direct_reads(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    finding = file_system.check(Here(tmp_path))
    assert finding.state == "note"
    assert "no O_DIRECT" in finding.found


def test_direct_reads_that_fail(tmp_path, monkeypatch):
    if not hasattr(os, "O_DIRECT"):
        pytest.skip("no O_DIRECT here")
    monkeypatch.setattr(os, "O_DIRECT", 0)  # memory file systems may lack it
    monkeypatch.setattr(os, "preadv", refuse(errno.EINVAL))
    assert "O_DIRECT cannot be read with" in file_system.check(Here(tmp_path)).found


@pytest.mark.parametrize(("kind", "state"), [("nfs4", "note"), ("ext4", "ok")])
def test_locks_of_one_machine(tmp_path, monkeypatch, mounted, kind, state):
    mounted(kind, "rw,local_lock=all,hard")
    monkeypatch.setattr(file_system, "_direct", lambda scratch: "")
    finding = file_system.check(Here(tmp_path))
    assert finding.state == state
    assert ("local_lock=all" in finding.found) == (state == "note")


def test_folder_of_somebody_else(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse(errno.EACCES))
    finding = file_system.check(Here(tmp_path))
    assert finding.state == "note"
    assert "cannot be written to (Permission denied)" in finding.found


def test_nearest_mount_counts(monkeypatch, tmp_path):
    mounts = [(str(tmp_path), "nfs"), (str(tmp_path), "nfs4"), (f"{tmp_path}/x", "xfs"), ("/other", "zfs"), ("/", "ext4")]
    found = [SimpleNamespace(mountpoint=where, fstype=kind, opts="") for where, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    assert file_system.mount_of(tmp_path / "features")[0] == "nfs4"
    assert file_system.mount_of(tmp_path.parent)[0] == "ext4"
