"""What a file system can do."""

import errno
import os
from types import SimpleNamespace

import psutil
import pytest

from pipelines.doctor import file_system
from pipelines.doctor.machine import Machine
from tests.pipelines.doctor.said import says
from tests.store.leased import without_locks


@pytest.fixture
def mounted(monkeypatch):
    def make(kind, options="rw"):
        mounts = [SimpleNamespace(mountpoint="/", fstype=kind, opts=options)]
        monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)

    return make


def test_here(tmp_path):
    finding = file_system.check(Machine(tmp_path))
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
    without_locks(monkeypatch)
    finding = file_system.check(Machine(tmp_path))
    says(finding, "note", "no file locks", "take turns by leases", "give an --out on a local disk")
    assert ("mount with -o flock" in finding.remedy) == hint


@pytest.mark.parametrize(
    ("broken", "by", "state", "words"),
    [
        ("store.writing.lock.take", lambda file, shared=False, wait=False: None, "problem", "file locks keep nobody out"),
        ("store.writing.lock.take", refuse(errno.EIO), "problem", "cannot be locked (Input/output error)"),
        ("store.places.disk.exchange", refuse(errno.EXDEV), "problem", "renamed"),
        ("store.places.disk.exchange", lambda one, other: None, "problem", "renamed"),
        ("tempfile.TemporaryDirectory", refuse(errno.EACCES), "note", "cannot be written to (Permission denied)"),
    ],
)
def test_what_does_not_work(tmp_path, monkeypatch, broken, by, state, words):
    monkeypatch.setattr(broken, by)
    says(file_system.check(Machine(tmp_path)), state, words)


def test_no_direct_reads(tmp_path, monkeypatch):
    if hasattr(os, "O_DIRECT"):
        monkeypatch.setattr(os, "O_DIRECT", 0)  # memory file systems may lack it
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", refuse(errno.EINVAL))
            assert "O_DIRECT cannot be read with" in file_system.check(Machine(tmp_path)).found
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    says(file_system.check(Machine(tmp_path)), "note", "no O_DIRECT")


@pytest.mark.parametrize(("kind", "state"), [("nfs4", "note"), ("ext4", "ok")])
def test_locks_of_one_machine(tmp_path, monkeypatch, mounted, kind, state):
    mounted(kind, "rw,local_lock=all,hard")
    monkeypatch.setattr(file_system, "_direct", lambda scratch: "")
    finding = file_system.check(Machine(tmp_path))
    assert finding.state == state
    assert ("local_lock=all" in finding.found) == (state == "note")


def test_one_machine_does_not_vouch_for_two(tmp_path, monkeypatch, mounted):
    mounted("gpfs")
    monkeypatch.setattr(file_system, "_direct", lambda scratch: "no O_DIRECT")
    finding = file_system.check(Machine(tmp_path))
    says(finding, "note", "one machine cannot show", "; no O_DIRECT;", "--listen there", "--peer here")


def test_nearest_mount_counts(monkeypatch, tmp_path):
    mounts = [(str(tmp_path), "nfs"), (str(tmp_path), "nfs4"), (f"{tmp_path}/x", "xfs"), ("/other", "zfs"), ("/", "ext4")]
    found = [SimpleNamespace(mountpoint=where, fstype=kind, opts="") for where, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    assert file_system.mount_of(tmp_path / "features")[0] == "nfs4"
    assert file_system.mount_of(tmp_path.parent)[0] == "ext4"
