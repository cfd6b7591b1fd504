"""The page as the command writes it; what holds of every section is in tests/contracts."""

import base64
import hashlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from tests.decoys import lay_decoys
from tests.pipelines.report.html import Page, check_page
from tests.pipelines.report.written import STATISTICS, write_all


def written(paths: dict[str, Path]) -> str:
    arguments = [part for name, path in paths.items() for part in (f"--{name}", str(path))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.report.drawing._save", lambda *_, **__: b"<svg></svg>")
        result = CliRunner().invoke(app, ["report", *arguments, "--n-examples", "2"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.endswith(f"report: {paths['out'] / 'index.html'}\n")
    return (paths["out"] / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("report"), statistics=STATISTICS[:1])  # plots take most of the time


@pytest.fixture(scope="module")
def page(paths: dict[str, Path]) -> str:
    return written(paths)


def test_sections_are_those_of_what_was_computed(page: str):
    ids = {attributes["id"] for tag, attributes in check_page(page).tags if tag == "section"}
    assert ids >= {"findings", "accuracy", "attention", "overlays", "curves", "provenance"}
    assert not ids & {"datasets", "studies", "cost", "views", "selection", "localisation", "segmentation", "detection", "depth"}
    assert not ids & {"by-block", "geometry", "few-shot", "scores", "measures", "against"}


def test_our_script_alone_may_run(page: str):
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in page
    assert "<script" not in page.replace(f"<script>{script}</script>", "")


def test_links_to_files_lead_to_files(page: str, paths: dict[str, Path]):
    links = [str(a["href"]) for tag, a in Page(page).tags if tag == "a" and not str(a["href"]).startswith("#")]
    assert len(links) > 20
    written_files = {
        str(file.relative_to(paths["out"])) for name in ("tables", "figures") for file in (paths["out"] / name).iterdir()
    }
    assert written_files == set(links)


def test_published_numbers_are_set_apart(page: str):
    aside = page[page.index('<aside class="reference" aria-labelledby="table-published-table-1-title"') :]
    aside = aside[: aside.index("</aside>")]
    for expected in ("Published, ImageNet-1k", "arXiv:2412.03215v1, Table 1", "71.6", "−1.9"):
        assert expected in aside
    assert "71.6" not in page.replace(aside, "")


def test_the_same_inputs_give_the_same_bytes(paths: dict[str, Path], page: str, tmp_path: Path, monkeypatch):
    """In any folder: with --probes, nothing is read that is not named."""
    (tmp_path / "project").mkdir()
    lay_decoys(tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    again = {**paths, "out": tmp_path / "again"}
    assert written(again) == page
    files = [file.relative_to(paths["out"]) for file in paths["out"].rglob("*.*")]
    assert len(files) > 40
    for file in files:
        assert (again["out"] / file).read_bytes() == (paths["out"] / file).read_bytes(), file
