"""Whether a service refuses to write what is there."""

import threading
import uuid

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.doctor import conditional_writes
from pipelines.doctor.machine import Machine
from tests.pipelines.doctor.said import says


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}/sets"


def check(folder, root, **options):
    (folder / "params.yaml").write_text(f"store: {{root: '{root}'}}")
    return conditional_writes.check(Machine(folder, **options))


def test_a_folder_is_not_asked(tmp_path):
    assert check(tmp_path, tmp_path / "common") is None
    assert conditional_writes.check(Machine(tmp_path / "nothing")) is None


def test_one_that_refuses(tmp_path, root):
    says(check(tmp_path, root), "ok", f"{root} refuses to write what is there: several tasks can write sets straight to it → ")
    assert MemoryFileSystem().find(root) == [], "nothing is left there"


def test_one_that_ignores_it(tmp_path, root, monkeypatch):
    real = MemoryFileSystem.pipe_file
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, value, **_: real(self, path, value))
    words = f"{root} ignores the condition of a write (If-None-Match: *) → sets are written to features/.upload first"
    says(check(tmp_path, root), "note", words)
    assert MemoryFileSystem().find(root) == []


def test_one_that_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr("store.places.object_store.REFUSED", {})  # a protocol that is installed everywhere
    says(check(tmp_path, f"local://{tmp_path}/x"), "note", "has no conditional writing that fsspec knows of → sets are")


def test_one_that_may_only_be_read(tmp_path, root, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("Access Denied for https://me:hunter2@host")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    says(check(tmp_path, root), "note", "cannot be written: Access Denied for https://***@host → probing works; to extract")


def test_one_that_is_silent(tmp_path, root, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda *_, **__: never.wait())
    monkeypatch.setattr(conditional_writes, "SECONDS", 0.05)
    says(check(tmp_path, root), "note", "no answer within 0.05 s → see store.root")
    never.set()
    says(check(tmp_path, root, offline=True), "note", f"nothing was written to {root} → leave out --offline")
