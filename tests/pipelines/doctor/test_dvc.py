"""DVC: real projects, where it is installed."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.doctor import dvc, dvc_cache, dvc_project, dvc_remote
from pipelines.doctor.machine import Machine
from store.errors import BeyondClsError
from tests.pipelines.doctor.said import says


def dvc_in(folder, *arguments):
    subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template")
    dvc_in(folder, "init", "--no-scm", "--quiet")
    return folder


@pytest.fixture
def project(template, tmp_path):
    shutil.copytree(template, tmp_path / "project")
    return tmp_path / "project"


def knowing(project, **settings):
    """As if DVC had said so: asking it takes seconds."""
    machine = Machine(project)
    cache = Path(settings.pop("cache_dir", project / ".dvc/cache"))
    vars(machine)["project"] = dvc_project.Project(project, cache, {n.replace("_", ".", 1): v for n, v in settings.items()})
    return machine


def without_dvc(monkeypatch):
    def missing(name):
        raise dvc_project.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(dvc_project.metadata, "version", missing)
    monkeypatch.setattr(shutil, "which", lambda name: None)


def test_project(project):
    (project / "below").mkdir()
    finding = dvc.check(Machine(project / "below"))
    assert finding.state == "ok"
    assert finding.found.endswith(f"project {project}")


def test_outside_of_a_project(tmp_path):
    says(dvc.check(Machine(tmp_path)), "note", "in no DVC project", " → for `dvc repro`, go to the folder of dvc.yaml")
    (tmp_path / "dvc.yaml").write_text("stages: {}")
    says(dvc.check(Machine(tmp_path)), "note", " → git init && dvc init")
    assert dvc_cache.check(Machine(tmp_path)) is None
    assert dvc_remote.check(Machine(tmp_path)) is None


def test_not_installed(project, tmp_path, monkeypatch):
    without_dvc(monkeypatch)
    says(dvc.check(Machine(project)), "note", "`dvc repro` and its cache need it", " → pip install dvc")
    assert "work without it" in dvc.check(Machine(tmp_path)).found
    assert dvc_cache.check(Machine(project)) is None
    assert dvc_remote.check(Machine(project)) is None
    monkeypatch.setattr(shutil, "which", lambda name: "/opt/dvc")
    assert dvc_project.dvc_command() == ["/opt/dvc"]


@pytest.mark.parametrize(("version", "state"), [("2.58.2", "problem"), ("3.9.1", "problem"), ("3.12.0", "ok"), ("4.0.0", "ok")])
def test_version(project, monkeypatch, version, state):
    monkeypatch.setattr(dvc, "ask", lambda folder, *arguments: f"{version}\n")
    finding = dvc.check(knowing(project))
    assert finding.state == state
    assert ("pip install --upgrade" in finding.remedy) == (state == "problem")


def test_settings_that_cannot_be_read(project):
    (project / ".dvc/config").write_text("[cache\n")
    with pytest.raises(BeyondClsError, match=r"`dvc config --list` fails in .*mend what it says"):
        dvc.check(Machine(project))


def test_command_that_does_not_run(project, monkeypatch):
    monkeypatch.setattr(dvc_project, "dvc_command", lambda: ["/none/dvc"])
    with pytest.raises(BeyondClsError, match=r"`dvc --version` does not run: .*install DVC again"):
        dvc.check(Machine(project))


def test_files_of_the_folder_are_not_taken_for_packages(project, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)  # which may name the current folder
    (project / "dvc.py").write_text("raise SystemExit('taken')")
    assert dvc_project.ask(project, "--version")


def refuse(number):
    def call(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return call


LINKS = {
    "copies take room twice": ("copy", {}, "note", ["take their room twice", " → dvc config cache.type hardlink,symlink,copy"]),
    "default of DVC": (
        None,
        {"reflink": refuse(errno.EOPNOTSUPP)},
        "note",
        ["cache.type reflink,copy; copy works, reflink does not (Operation not supported)"],
    ),
    "one does not work": (
        "hardlink,symlink,copy",
        {"hardlink": refuse(errno.EXDEV)},
        "ok",
        ["symlink works, hardlink does not (other file system)"],
    ),
    "nothing works": (
        "hardlink",
        {"hardlink": refuse(errno.EXDEV)},
        "problem",
        ["nothing in cache.type works (hardlink: other file system)"],
    ),
    "another content": (
        "hardlink,symlink",
        {"hardlink": lambda source, target: target.write_bytes(b"?")},
        "ok",
        ["hardlink does not (another content)"],
    ),
}


class TestCache:
    def test_links(self, project):
        for value in ("hardlink,symlink,copy", '"hardlink,symlink,copy"'):
            (project / ".dvc/config").write_text(f"[core]\n    no_scm = true\n[cache]\n    type = {value}\n")
            says(dvc_cache.check(Machine(project)), "ok", "cache.type hardlink,symlink,copy; hardlink works → ")
        assert sorted(p.name for p in project.iterdir()) == [".dvc", ".dvcignore"]  # cleaned up

    @pytest.mark.parametrize("case", LINKS)
    def test_links_that_do_not_work(self, case, project, monkeypatch):
        cache_type, kinds, state, words = LINKS[case]
        for kind, link in kinds.items():
            monkeypatch.setitem(dvc_cache.KINDS, kind, link)
        says(dvc_cache.check(knowing(project, **({"cache_type": cache_type} if cache_type else {}))), state, *words)

    def test_cache_on_another_file_system(self, project, tmp_path):
        if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is one file system only")
        cache = "/dev/shm/beyondcls-test-cache-that-is-not-there"
        finding = dvc_cache.check(knowing(project, cache_type="hardlink,copy", cache_dir=cache))
        says(finding, "note", "hardlink does not (other file system)", f"the cache, {cache}, is on another file system")
        assert finding.remedy.startswith("dvc cache dir FOLDER")

    def test_cache_of_somebody_else(self, project, monkeypatch):
        monkeypatch.setattr(dvc_cache.tempfile, "TemporaryDirectory", refuse(errno.EACCES))
        says(dvc_cache.check(knowing(project)), "note", "cannot be written to (Permission denied)")


class TestRemote:
    @pytest.mark.parametrize(
        ("settings", "state", "words"),
        [
            ({}, "note", "dvc remote add -d"),
            ({"remote.up.url": "s3://bucket/x"}, "note", " → dvc remote default up"),
            ({"core_remote": "down", "remote.up.url": "s3://bucket/x"}, "problem", "'down' is not defined; defined: up"),
        ],
    )
    def test_that_cannot_be_used(self, settings, state, words, project):
        says(dvc_remote.check(knowing(project, **settings)), state, words)

    def test_password_is_masked(self, project):
        dvc_in(project, "remote", "add", "-d", "up", "https://user:hunter2@example.org/x")
        dvc_in(project, "remote", "modify", "--local", "up", "password", "hunter2")
        finding = dvc_remote.check(Machine(project))
        assert (finding.state, finding.found) == ("ok", "up (default) https://***@example.org/x")
