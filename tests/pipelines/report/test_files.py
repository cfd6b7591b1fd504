import json
from pathlib import Path

import pytest

from pipelines.report import files
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Column, Figure, Figures, Section, Table
from pipelines.report.files import write
from pipelines.report.formats import FORMATS
from tests.pipelines.report.written import ACCURACY, write_all

FIGURE = Figure("a-plot", "A plot", "", "<svg></svg>", "In words.", {"svg": b"vector", "png": b"pixels"})
SECTION = Section("one", "One", (Table("a-table", "A table", "", (Column("a", "A"),), ()), Figures((FIGURE,))))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return collect(Folders(write_all(tmp_path_factory.mktemp("report"))["probes"]))


def test_every_table_and_figure_is_a_file_and_what_an_earlier_run_left_goes(tmp_path: Path, inputs: Inputs):
    for name in ("tables/old.csv", "figures/old.svg", "mine.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    write(tmp_path, inputs, [SECTION])
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    tables = {"tables/results.csv", *(f"tables/a-table.{suffix}" for suffix in FORMATS)}
    assert written == {"index.html", "metrics.json", "mine.txt", "figures/a-plot.svg", "figures/a-plot.png"} | tables
    assert (tmp_path / "figures/a-plot.png").read_bytes() == b"pixels"
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        encoder: {head: {"top1": top1, "std": 0.5} for head, top1 in heads.items()} for encoder, heads in ACCURACY.items()
    }


def test_two_tables_of_one_name_are_refused():
    with pytest.raises(AssertionError, match="one file"):
        files.tables([SECTION, SECTION])
