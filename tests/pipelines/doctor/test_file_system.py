"""What a file system can do."""

import errno
import os
from types import SimpleNamespace

import psutil
import pytest

from pipelines.doctor import file_system
from pipelines.doctor.machine import Machine
from tests.pipelines.doctor.said import says


def test_here(tmp_path):
    finding = file_system.check(Machine(tmp_path))
    assert finding.state in ("ok", "note"), finding  # memory file systems may lack O_DIRECT
    assert list(tmp_path.iterdir()) == []  # cleaned up


def refuse(number):
    def call(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("broken", "by", "state", "words"),
    [
        (
            "store.places.disk.place_file",
            lambda partial, target: not os.replace(partial, target),
            "problem",
            "replaces another",
        ),
        ("store.places.disk.place_file", refuse(errno.EIO), "note", "cannot be written to (Input/output error)"),
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


def test_nearest_mount_counts(monkeypatch, tmp_path):
    mounts = [(str(tmp_path), "nfs"), (str(tmp_path), "nfs4"), (f"{tmp_path}/x", "xfs"), ("/other", "zfs"), ("/", "ext4")]
    found = [SimpleNamespace(mountpoint=where, fstype=kind, opts="") for where, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    assert file_system.kind_of(tmp_path / "features") == "nfs4"
    assert file_system.kind_of(tmp_path.parent) == "ext4"
