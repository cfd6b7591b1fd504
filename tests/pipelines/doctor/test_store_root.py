"""The folder or bucket that machines share."""

import os
import threading

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.doctor import store_root
from pipelines.doctor.here import Here
from store import BeyondClsError


def check(folder, root, **options):
    (folder / "params.yaml").write_text(f"store: {{root: '{root}'}}")
    return store_root.check(Here(folder, **options))


def test_none(tmp_path):
    assert store_root.check(Here(tmp_path)) is None
    (tmp_path / "params.yaml").write_text("store: {root: null}")
    assert store_root.check(Here(tmp_path)) is None


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
        assert store_root.check(Here(tmp_path)).found == expected
        (tmp_path / "params.yaml").write_text("store: {root: null, cache: null}")
        assert store_root.check(Here(tmp_path)).found == expected

    def test_the_project_goes_first(self, tmp_path, file):
        (tmp_path / "common").mkdir()
        assert check(tmp_path, "common").found.endswith(
            f"common (entries: 0) can be read and written to (from {tmp_path}/params.yaml)"
        )
        finding = check(tmp_path, "project")
        assert finding.state == "ok"
        assert (
            finding.found == f"none: feature sets lie in features/, as params.yaml says, and not at {tmp_path}/theirs ({file})"
        )

    def test_a_mistake(self, tmp_path, file):
        file.write_text("[store]\nroot = 5\n")
        with pytest.raises(BeyondClsError, match=f"store.root in {file} is 5"):
            check(tmp_path, "common")


class TestFolder:
    def test_works(self, tmp_path):
        (tmp_path / "common/set").mkdir(parents=True)
        for root in ("common", str(tmp_path / "common"), f"file://{tmp_path / 'common'}"):
            finding = check(tmp_path, root)
            assert finding.state == "ok"
            assert (
                finding.found == f"{tmp_path / 'common'} (entries: 1) can be read and written to (from {tmp_path}/params.yaml)"
            )
        assert [p.name for p in (tmp_path / "common").iterdir()] == ["set"]

    def test_not_there(self, tmp_path, monkeypatch):
        finding = check(tmp_path, "common")
        assert finding.state == "note"
        assert "mount it" in finding.remedy
        assert not (tmp_path / "common").exists()
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        assert check(tmp_path, "common").state == "problem"

    def test_no_folder(self, tmp_path):
        (tmp_path / "common").touch()
        finding = check(tmp_path, "common")
        assert finding.state == "problem"
        assert "is no folder" in finding.found

    def test_not_ours(self, tmp_path, monkeypatch):
        (tmp_path / "common").mkdir()

        def refuse(*arguments, **options):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(store_root.tempfile, "TemporaryDirectory", refuse)
        finding = check(tmp_path, "common")
        assert finding.state == "note"
        assert "probing works" in finding.remedy
        monkeypatch.setattr(os, "scandir", refuse)
        finding = check(tmp_path, "common")
        assert finding.state == "problem"
        assert "cannot be read (Permission denied)" in finding.found

    def test_server_that_is_away(self, tmp_path, monkeypatch):
        never = threading.Event()
        monkeypatch.setattr(store_root, "SECONDS", 0.05)
        monkeypatch.setattr(store_root, "_folder", lambda folder: never.wait())
        finding = check(tmp_path, "common")
        never.set()
        assert finding.state == "problem"
        assert "no answer within" in finding.found


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


class TestAddress:
    def test_works(self, tmp_path, service):
        service(lambda path: ["a", "b"])
        finding = check(tmp_path, "doctored://bucket/folder")
        assert (finding.state, finding.found) == (
            "ok",
            f"doctored://bucket/folder can be listed (entries: 2) (from {tmp_path}/params.yaml)",
        )

    def test_empty(self, tmp_path, service):
        def ls(path):
            if path.endswith("folder"):
                raise FileNotFoundError(path)
            return []

        service(ls)
        finding = check(tmp_path, "doctored://bucket/folder")
        assert (finding.state, finding.found) == (
            "ok",
            f"doctored://bucket/folder: nothing there yet (from {tmp_path}/params.yaml)",
        )

    def test_no_bucket(self, tmp_path, service):
        def ls(path):
            raise FileNotFoundError(path)

        service(ls)
        finding = check(tmp_path, "doctored://bucket/folder")
        assert finding.state == "problem"
        assert "there is no doctored://bucket" in finding.found

    def test_bucket_that_may_not_be_listed(self, tmp_path, service):
        def ls(path):
            raise FileNotFoundError(path) if path.endswith("folder") else PermissionError(path)

        service(ls)
        assert check(tmp_path, "doctored://bucket/folder").state == "note"

    def test_refused(self, tmp_path, service):
        def ls(path):
            raise PermissionError("Access Denied for https://me:hunter2@host")

        service(ls)
        finding = check(tmp_path, "doctored://bucket/folder")
        assert finding.state == "problem"
        assert "PermissionError: Access Denied for https://***@host" in finding.found
        assert "credentials" in finding.remedy

    def test_no_answer(self, tmp_path, service, monkeypatch):
        never = threading.Event()
        service(lambda path: never.wait())
        monkeypatch.setattr(store_root, "SECONDS", 0.1)
        finding = check(tmp_path, "doctored://bucket/folder")
        never.set()
        assert finding.state == "problem"
        assert "no answer within 0.1 s" in finding.found

    def test_offline(self, tmp_path, service):
        service(lambda path: pytest.fail("asked"))
        finding = check(tmp_path, "doctored://bucket/folder", offline=True)
        assert (finding.state, finding.remedy) == ("note", "leave out --offline")

    def test_package_that_is_missing(self, tmp_path, monkeypatch):
        def missing(protocol):
            raise ImportError("Install s3fs to access S3")

        monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
        finding = check(tmp_path, "s3://bucket/folder")
        assert (finding.state, finding.remedy) == ("problem", "pip install 'beyondcls[s3]'")
        assert check(tmp_path, "gs://bucket").remedy == "Install s3fs to access S3"

    def test_unknown_protocol(self, tmp_path):
        finding = check(tmp_path, "s4://bucket/folder")
        assert finding.state == "problem"
        assert "unknown protocol, expected a folder, s3://bucket/folder" in finding.found
