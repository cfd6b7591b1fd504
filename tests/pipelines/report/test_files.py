import json
from pathlib import Path

import pytest
from PIL import Image

from pipelines.report import files
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Section, Table
from pipelines.report.files import write
from pipelines.report.sections import accuracy, curves
from tests.pipelines.report.written import ACCURACY, write_all


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    paths = write_all(tmp_path)
    return collect(Folders(paths["probes"], paths["attention"]))


def test_every_table_and_figure_is_a_file(tmp_path: Path, inputs: Inputs):
    sections = [accuracy.section(inputs), curves.section(inputs)]
    write(tmp_path / "out", inputs, sections)
    tables = {table.name for table in files.tables(sections)}
    figures = {figure.name for figure in files.figures(sections)}
    assert "accuracy" in tables
    assert figures == {"curves-mae", "curves-random"}
    found = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert found == {"index.html", "metrics.json"} | {f"tables/{name}.{s}" for name in tables for s in ("csv", "tex", "md")} | {
        f"figures/{name}.{s}" for name in figures for s in ("svg", "png")
    }
    assert Image.open(tmp_path / "out" / "figures" / "curves-mae.png").width > 600


def test_files_of_an_earlier_run_go_and_others_stay(tmp_path: Path, inputs: Inputs):
    for name in ("tables/old.csv", "figures/old.svg", "mine.txt"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text("old")
    write(tmp_path / "out", inputs, [accuracy.section(inputs)])
    left = {file.name for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert not {"old.csv", "old.svg"} & left
    assert "mine.txt" in left


def test_metrics_hold_the_accuracies(tmp_path: Path, inputs: Inputs):
    write(tmp_path / "out", inputs, [])
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert found == {
        encoder: {head: {"top1": top1, "std": 0.5} for head, top1 in heads.items()} for encoder, heads in ACCURACY.items()
    }


def test_two_tables_of_one_name_are_refused(inputs: Inputs):
    section = Section("x", "X", (Table("same", "", "", (), ()), Table("same", "", "", (), ())))
    with pytest.raises(AssertionError, match="one file"):
        files.tables([section])
