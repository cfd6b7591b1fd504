"""Few shots, correspondence, retrieval and tracking: tables of results that are written here."""

from pathlib import Path

import pytest

from pipelines.report.collect import Folders, Inputs
from pipelines.report.sections.few_shot import section
from tests.pipelines.report import everything as results
from tests.pipelines.report.written import shown, studied, tables


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    probes = {(encoder, "cls"): studied(encoder, "cls", 50.0) for encoder in ("mae", "random")}
    for encoder, percent in (("mae", 40.0), ("random", 20.0), ("not shown", 90.0)):
        results.write_few_shot(tmp_path / "few", encoder, percent)
        results.write_correspondence(tmp_path / "pairs/spair", encoder, percent)
        results.write_retrieval(tmp_path / "searches/roxford", encoder, percent)
        results.write_tracking(tmp_path / "videos/davis", encoder, percent)
    given = {"few_shot": "few", "correspondence": "pairs", "retrieval": "searches", "tracking": "videos"}
    return Inputs(probes, folders=Folders(**{name: tmp_path / folder for name, folder in given.items()}))


def test_the_tables(inputs):
    by_name = tables(section(inputs))
    few = by_name["few-shot"]
    assert [column.name for column in few.columns] == ["encoder", "vector", "classifier", "top1_1shot", "top1_10shot"]
    first, second = shown(few)
    assert (first[0], first[2], second[0]) == ("mae", "lsr", "random")
    assert first[3].startswith("40.0 [")
    assert first[4].startswith("50.0 [")
    assert [row.cells[3].best for row in few.rows] == [True, False]
    pairs = shown(by_name["correspondence"])
    assert [row[2] for row in pairs] == ["0", "1", "0", "1"]
    assert pairs[1][3].startswith("40.0")
    assert pairs[1][4].startswith("39.0")
    assert pairs[1][5:] == ["4.0", "7"]
    searches = shown(by_name["retrieval"])
    assert [row[:5] for row in searches][1] == ["roxford", "mae", "[cls]", "1", "hard"]
    assert [row[5].split(" ")[0] for row in searches] == ["40.0", "20.0", "20.0", "10.0"]
    assert searches[0][8:] == ["5", "9"]
    assert [row.cells[5].best for row in by_name["retrieval"].rows] == [True, True, False, False]
    tracks = shown(by_name["tracking"])
    assert [row[:3] for row in tracks] == [["davis", "mae", "1"], ["davis", "random", "1"]]
    assert [cell.split(" ")[0] for cell in tracks[0][3:]] == ["40.0", "39.0", "41.0", "12.0", "3", "6", "5"]

    # Over images alone it is 2 · 2.09 · √19 wide, by the 19 degrees of freedom of twenty groups; each draw is 1 point off.
    low, high = (float(part.strip(" []")) for part in first[3].split(" ", 1)[1].split(","))
    assert high - low > 18.4
