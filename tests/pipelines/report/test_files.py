import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.report import files
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Column, Figure, Figures, Section, Table
from pipelines.report.files import place_of, write
from pipelines.report.formats import FORMATS
from store import BeyondClsError, StoreError
from tests.folders import files as contents
from tests.pipelines.report.written import ACCURACY, write_all, write_probe

FIGURE = Figure("a-plot", "A plot", "", "<svg></svg>", "In words.", {"svg": lambda: b"vector", "png": lambda: b"pixels"})
SECTION = Section("one", "One", (Table("a-table", "A table", "", (Column("a", "A"),), ()), Figures((FIGURE,))))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return collect(Folders(write_all(tmp_path_factory.mktemp("report"))["probes"]))


def test_every_table_and_figure_is_a_file_and_what_an_earlier_run_left_goes(tmp_path: Path, inputs: Inputs):
    """And nothing that somebody else put there."""
    old = Section("old", "Old", (replace(SECTION.blocks[0], name="old"), Figures((replace(FIGURE, name="old"),))))
    write(tmp_path, inputs, [old])
    assert (tmp_path / "tables/old.csv").exists()
    mine = {"mine.txt", "tables/mine.csv", "figures/mine.svg"}
    for name in mine:
        (tmp_path / name).write_text("mine")
    write(tmp_path, inputs, [SECTION])
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    tables = {"tables/results.csv", *(f"tables/a-table.{suffix}" for suffix in FORMATS)}
    assert written == {"index.html", "metrics.json", "figures/a-plot.svg", "figures/a-plot.png"} | tables | mine
    assert (tmp_path / "figures/a-plot.png").read_bytes() == b"pixels"
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        encoder: {head: {"top1": top1, "std": 0.5} for head, top1 in heads.items()} for encoder, heads in ACCURACY.items()
    }


def test_of_two_reports_that_are_made_at_once_the_second_stays_beside(tmp_path: Path, inputs: Inputs):
    first, second = place_of(tmp_path / "report"), place_of(tmp_path / "report")
    write(first, inputs, [SECTION])
    before = contents(tmp_path / "report")
    with pytest.raises(StoreError, match="holds another result than when this run began"):
        write(second, inputs, [])
    assert contents(tmp_path / "report") == before
    (kept,) = (tmp_path / ".unfinished").iterdir()
    assert {"index.html", "metrics.json"} <= contents(kept).keys()
    write(first, inputs, [SECTION], 5)  # its own, as a live page does


def test_the_page_of_somebody_else_stays(tmp_path: Path, inputs: Inputs):
    (tmp_path / "index.html").write_text("<h1>My site</h1>")
    with pytest.raises(BeyondClsError, match="is no report, so it is not replaced"):
        write(tmp_path, inputs, [SECTION])
    assert contents(tmp_path) == {"index.html": b"<h1>My site</h1>"}


def test_two_tables_of_one_name_are_refused():
    with pytest.raises(AssertionError, match="one file"):
        files.parts([SECTION, SECTION], Table)


def test_names_that_are_not_utf8_are_written_escaped(tmp_path):
    """A folder of probes may be called so, and commands that name it are shown."""
    folder = tmp_path / os.fsdecode(b"data\xff")
    write_probe(folder, "mae", os.fsdecode(b"cls\xe9"), 60.0)
    write(tmp_path / "out", collect(Folders(folder)), [replace(SECTION, title=str(folder))])
    assert "data\\udcff" in (tmp_path / "out/index.html").read_text("utf-8")
    assert "cls\\udce9" in (tmp_path / "out/tables/results.csv").read_text("utf-8")


def test_what_cannot_be_read_is_neither_damaged_nor_left_out(tmp_path, monkeypatch):
    """Root reads everything, so what the system says is in its place."""
    for encoder in ("mae", "dino"):
        write_probe(tmp_path / "probes", encoder, "cls", 60.0)

    def refuse(call, name):
        def refused(path, *arguments, **named):
            if str(path).endswith(name):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *arguments, **named)

        return refused

    for owner, call, name in ((os, "scandir", "probes/mae"), (os, "scandir", "mae/cls"), (Path, "open", "cls/metrics.json")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, call, refuse(getattr(owner, call), name))
            with pytest.raises(PermissionError, match=name):
                collect(Folders(tmp_path / "probes"))
