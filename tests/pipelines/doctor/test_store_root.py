"""The folder or bucket that machines share."""

import os
import threading

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.doctor import store_root
from pipelines.doctor.machine import Machine
from store import BeyondClsError
from tests.pipelines.doctor.said import says


def check(folder, root, **options):
    (folder / "params.yaml").write_text(f"store: {{root: '{root}'}}")
    return store_root.check(Machine(folder, **options))


def test_none(tmp_path):
    assert store_root.check(Machine(tmp_path)) is None
    (tmp_path / "params.yaml").write_text("store: {root: null}")
    assert store_root.check(Machine(tmp_path)) is None


class TestOfTheUser:
    @pytest.fixture(autouse=True)
    def file(self, tmp_path, monkeypatch):
        (tmp_path / "theirs").mkdir()
        file = tmp_path / "beyondcls.toml"
        file.write_text(f'[store]\nroot = "{tmp_path}/theirs"\n')
        monkeypatch.setenv("BEYONDCLS_CONFIG", str(file))
        return file

    def test_counts_where_the_project_names_none(self, tmp_path, file):
        expected = f"{tmp_path}/theirs (entries: 0) can be read and written to (from {file})"
        assert store_root.check(Machine(tmp_path)).found == expected
        (tmp_path / "params.yaml").write_text("store: {root: null, cache: null}")
        assert store_root.check(Machine(tmp_path)).found == expected

    def test_the_project_goes_first(self, tmp_path, file):
        (tmp_path / "common").mkdir()
        words = f"common (entries: 0) can be read and written to (from {tmp_path}/params.yaml) → "
        says(check(tmp_path, "common"), "ok", words)
        words = f"none: feature sets are in features/, as params.yaml says, and not at {tmp_path}/theirs ({file}) → "
        says(check(tmp_path, "project"), "ok", words)

    def test_a_mistake(self, tmp_path, file):
        file.write_text("[store]\nroot = 5\n")
        with pytest.raises(BeyondClsError, match=f"store.root in {file} is 5"):
            check(tmp_path, "common")


class TestFolder:
    def test_works(self, tmp_path):
        (tmp_path / "common/set").mkdir(parents=True)
        for root in ("common", str(tmp_path / "common"), f"file://{tmp_path / 'common'}"):
            words = f"{tmp_path / 'common'} (entries: 1) can be read and written to (from {tmp_path}/params.yaml) → "
            says(check(tmp_path, root), "ok", words)
        assert [p.name for p in (tmp_path / "common").iterdir()] == ["set"]

    def test_not_there(self, tmp_path, monkeypatch):
        says(check(tmp_path, "common"), "note", "mount it")
        assert not (tmp_path / "common").exists()
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        assert check(tmp_path, "common").state == "problem"

    def test_no_folder(self, tmp_path):
        (tmp_path / "common").touch()
        says(check(tmp_path, "common"), "problem", "is not a folder")

    def test_not_ours(self, tmp_path, monkeypatch):
        (tmp_path / "common").mkdir()
        refuse = raising(PermissionError(13, "Permission denied"))
        monkeypatch.setattr(store_root.tempfile, "TemporaryDirectory", refuse)
        says(check(tmp_path, "common"), "note", "probing works")
        monkeypatch.setattr(os, "scandir", refuse)
        says(check(tmp_path, "common"), "problem", "cannot be read (Permission denied)")

    def test_server_that_is_away(self, tmp_path, monkeypatch):
        never = threading.Event()
        monkeypatch.setattr(store_root, "SECONDS", 0.05)
        monkeypatch.setattr(store_root, "_folder", lambda folder: never.wait())
        finding = check(tmp_path, "common")
        never.set()
        says(finding, "problem", "no answer within")


def raising(error):
    def call(*arguments, **options):
        raise error

    return call


class Service(MemoryFileSystem):
    """Stands in for an object store."""

    protocol = "doctored"
    cachable = False
    answer: object = None

    def ls(self, path, detail=True, **options):
        return type(self).answer(path)


@pytest.fixture
def service():
    fsspec.register_implementation("doctored", Service, clobber=True)

    def answers(function):
        Service.answer = staticmethod(function)

    return answers


ADDRESS = "doctored://bucket/folder"


def only_the_folder_is_missing(path):
    if path.endswith("folder"):
        raise FileNotFoundError(path)
    return []


def only_the_folder_may_be_read(path):
    raise FileNotFoundError(path) if path.endswith("folder") else PermissionError(path)


class TestAddress:
    @pytest.mark.parametrize(
        ("answer", "state", "words"),
        [
            (lambda path: ["a", "b"], "ok", [f"{ADDRESS} can be listed (entries: 2) (from ", "/params.yaml) → "]),
            (only_the_folder_is_missing, "ok", [f"{ADDRESS}: nothing there yet (from ", "/params.yaml) → "]),
            (raising(FileNotFoundError("folder")), "problem", ["there is no doctored://bucket"]),
            (only_the_folder_may_be_read, "note", []),
            (
                raising(PermissionError("Access Denied for https://me:hunter2@host")),
                "problem",
                ["PermissionError: Access Denied for https://***@host", "credentials"],
            ),
        ],
    )
    def test_what_the_service_answers(self, tmp_path, service, answer, state, words):
        service(answer)
        says(check(tmp_path, ADDRESS), state, *words)

    def test_no_answer(self, tmp_path, service, monkeypatch):
        never = threading.Event()
        service(lambda path: never.wait())
        monkeypatch.setattr(store_root, "SECONDS", 0.1)
        finding = check(tmp_path, ADDRESS)
        never.set()
        says(finding, "problem", "no answer within 0.1 s")

    def test_offline(self, tmp_path, service):
        service(lambda path: pytest.fail("asked"))
        says(check(tmp_path, ADDRESS, offline=True), "note", " → leave out --offline")

    def test_package_that_is_missing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(fsspec, "get_filesystem_class", raising(ImportError("Install s3fs to access S3")))
        says(check(tmp_path, "s3://bucket/folder"), "problem", " → pip install 'beyondcls[s3]'")
        says(check(tmp_path, "gs://bucket"), "problem", " → Install s3fs to access S3")

    def test_unknown_protocol(self, tmp_path):
        words = "unknown protocol, expected a folder, s3://bucket/folder"
        says(check(tmp_path, "s4://bucket/folder"), "problem", words)
