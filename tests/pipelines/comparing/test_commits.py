"""Results of a commit, which are in DVC's cache."""

import shutil
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo

from tests.machines.machine import git
from tests.pipelines.comparing.test_compare import described
from tests.pipelines.report.written import write_probe


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which a head was trained twice, tagged `before` and `after`; its files are those of the second."""
    folder = tmp_path_factory.mktemp("project")
    git(folder, "init", "-q", "-b", "main")
    with Repo.init(str(folder)) as repo:
        for tag, top1 in (("before", 50.0), ("after", 52.5)):
            shutil.rmtree(folder / "probes", ignore_errors=True)
            described(write_probe(folder / "probes/birds", "mae", "cls", top1))
            described(write_probe(folder / "probes/birds", "mae", "average", 45.0))
            repo.add(str(folder / "probes"))
            git(folder, "add", "--all")
            git(folder, "commit", "-q", "-m", tag)
            git(folder, "tag", tag)
    return folder


def times(folder: Path) -> dict[Path, int]:
    """When its files were written, those of Git and DVC left out."""
    files = (file for file in folder.rglob("*") if file.is_file() and not {".git", ".dvc"} & {*file.parts})
    return {file: file.stat().st_mtime_ns for file in files}


def test_a_commit_is_compared_with_the_folder_and_with_another_commit(project, beyondcls, monkeypatch):
    monkeypatch.chdir(project)
    before = times(project)
    for other in (".", "after"):
        said = beyondcls("compare", "before", other)
        assert "birds │ mae │ cls │ top1 │ 50.00 ± 0.50 │ 52.50 ± 0.50 │ +2.50 ± 0.71" in said
        assert "1 of 2 results are equal, 1 differ" in said
    assert times(project) == before, "nothing of the project is touched"


def test_what_is_not_in_the_cache_is_named_with_the_remedy(project, beyondcls, monkeypatch, tmp_path):
    clone = shutil.copytree(project, tmp_path / "clone")
    shutil.rmtree(clone / ".dvc/cache")
    monkeypatch.chdir(clone)
    said = beyondcls("compare", "before", ".", fails=True)
    assert "DVC does not have all results of the commit 'before' here" in said
    assert "dvc fetch --all-commits" in said


def test_without_dvc_a_commit_cannot_be_read(project, beyondcls, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setitem(sys.modules, "dvc.api", None)
    assert "dvc, which reads it, is not installed here; pip install dvc" in beyondcls("compare", "before", ".", fails=True)
