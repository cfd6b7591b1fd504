"""Every head on every encoder and data set, the best first."""

from pathlib import Path

import pytest

from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.sections.accuracy import scores
from pipelines.report.sections.datasets import table
from pipelines.report.sections.leaderboard import leaderboard
from tests.pipelines.report.written import best, several_labels, shown, write_probe

REACHED = {("mae", "cls"): 40.0, ("mae", "abmilp"): 50.0, ("dino", "cls"): 55.0, ("random", "abmilp"): 20.0}


@pytest.fixture
def one(tmp_path: Path) -> Inputs:
    for (encoder, head), top1 in REACHED.items():
        write_probe(tmp_path / "probes", encoder, head, top1)
    return collect(Folders(tmp_path / "probes"))


@pytest.fixture
def several(tmp_path: Path) -> Inputs:
    """The second data set reverses the order of the first; the third lacks a head."""
    for (encoder, head), top1 in REACHED.items():
        write_probe(tmp_path / "sets/one", encoder, head, top1)
        write_probe(tmp_path / "sets/two", encoder, head, 100 - top1)
        if (encoder, head) != ("dino", "cls"):
            write_probe(tmp_path / "sets/three", encoder, head, top1 / 2)
    return collect(Folders(tmp_path / "sets/two", datasets=(tmp_path / "sets",), dataset="two"))


def test_the_best_comes_first(one: Inputs) -> None:
    table = leaderboard(one)
    titles = ["Encoder", "Family", "Head", "Top-1, %", "− [cls], points", "Parameters of the aggregator"]
    assert [column.title for column in table.columns] == titles
    assert shown(table) == [
        ["dino", "joint", "[cls]", "55.0 ± 0.5", "–", "0"],
        ["mae", "masked", "AbMILP", "50.0 ± 0.5", "+10.0 ± 0.7", "193"],
        ["mae", "masked", "[cls]", "40.0 ± 0.5", "–", "0"],
        ["random", "untrained", "AbMILP", "20.0 ± 0.5", "–", "193"],
    ]
    assert [row.muted for row in table.rows] == [False, False, False, True]
    assert [cells[0] for cells in best(table, slice(3, 4))] == [True, False, False, False]
    assert [column.title for column in table.columns if column.filters] == ["Encoder", "Family", "Head"]
    assert not any(column.of for column in table.columns), "there is one data set"


def test_several_data_sets_are_beside_each_other_behind_their_mean(several: Inputs) -> None:
    table = leaderboard(several)
    assert [column.title for column in table.columns][3:7] == ["Mean", "two", "one", "three"]
    assert [column.of for column in table.columns][3:7] == ["", *["Data set"] * 3]
    assert shown(table, slice(0, 7)) == [
        ["random", "untrained", "AbMILP", "36.7", "80.0 ± 0.5", "20.0 ± 0.5", "10.0 ± 0.5"],
        ["mae", "masked", "[cls]", "40.0", "60.0 ± 0.5", "40.0 ± 0.5", "20.0 ± 0.5"],
        ["mae", "masked", "AbMILP", "41.7", "50.0 ± 0.5", "50.0 ± 0.5", "25.0 ± 0.5"],
        ["dino", "joint", "[cls]", "–", "45.0 ± 0.5", "55.0 ± 0.5", "–"],
    ]
    assert best(table, slice(3, 7)) == [
        [False, True, False, False],
        [False, False, False, False],
        [True, False, False, True],
        [False, False, True, False],
    ]
    over_cls = table.rows[2].cells[7]
    assert (over_cls.value, over_cls.text) == (pytest.approx((10 - 10 + 5) / 3), "+1.7")
    assert [column.name for column in table.columns][6] == "top1_on_three"


def test_the_mean_decides_where_all_heads_have_it(tmp_path: Path) -> None:
    for name, cls in (("one", 40.0), ("two", 60.0)):
        write_probe(tmp_path / name, "mae", "cls", cls)
        write_probe(tmp_path / name, "mae", "abmilp", 45.0)
    table = leaderboard(collect(Folders(tmp_path / "one", datasets=(tmp_path,), dataset="one")))
    assert shown(table, slice(2, 4)) == [["[cls]", "50.0"], ["AbMILP", "45.0"]]


def test_different_measures_have_no_mean(tmp_path: Path) -> None:
    write_probe(tmp_path / "sets/one", "mae", "cls", 40.0)
    several_labels(write_probe(tmp_path / "sets/two", "mae", "cls", 60.0))
    several_labels(write_probe(tmp_path / "sets/two", "mae", "abmilp", 61.0))
    table = leaderboard(collect(Folders(tmp_path / "sets/one", datasets=(tmp_path / "sets",), dataset="one")))
    assert [column.title for column in table.columns][3:5] == ["one, Top-1", "two, mAP"]
    assert shown(table, slice(2, 5)) == [["[cls]", "40.0 ± 0.5", "60.0 ± 0.5"], ["AbMILP", "–", "61.0 ± 0.5"]]


def test_the_main_probes_are_among_other_data_sets(tmp_path: Path) -> None:
    write_probe(tmp_path / "p", "mae", "cls", 40.0)
    write_probe(tmp_path / "sets/one", "mae", "cls", 41.0)
    table = leaderboard(collect(Folders(tmp_path / "p", datasets=(tmp_path / "sets",), dataset="main")))
    assert shown(table, slice(3, 6)) == [["40.5", "40.0 ± 0.5", "41.0 ± 0.5"]]
    folders = Folders(tmp_path / "sets/one", datasets=(tmp_path / "sets", tmp_path), dataset="main")
    columns = [column.name for column in leaderboard(collect(folders)).columns if column.name.startswith("top1")]
    assert columns == ["top1_on_main", "top1_on_p"], "not main once more by the name of its folder"


def test_other_heads_are_in_the_order_of_their_accuracy_everywhere(tmp_path: Path) -> None:
    reached = {"cls": 10.0, "average": 12.0, "abmilp": 11.0, "a": 20.0, "b": 30.0, "c": 25.0}
    for encoder, less in (("mae", 0.0), ("dino", 2.0)):
        for head, top1 in reached.items():
            write_probe(tmp_path / "probes", encoder, head, top1 - less)
    write_probe(tmp_path / "probes", "random", "a", 99.0)  # untrained ones don't count where there are others
    inputs = collect(Folders(tmp_path / "probes"))
    expected = ["cls", "average", "abmilp", "b", "c", "a"]
    assert inputs.heads == expected
    assert [column.name for column in scores(inputs).columns][1:7] == expected
    assert [probe.head for probe in inputs.probes_of("mae")] == expected


def test_shares_of_errors_by_data_set(several: Inputs) -> None:
    (column,) = (i for i, column in enumerate(table(several).columns) if column.name == "error_share")
    shares = {row[0]: row[column] for row in shown(table(several)) if row[1] == "mae"}
    assert shares == {"one": "+16.7 ± 1.1", "three": "+6.2 ± 0.9", "two": "−25.0 ± 2.0"}
