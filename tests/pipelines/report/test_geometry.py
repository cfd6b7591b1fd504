"""The section about vectors without a head: numbers of the deepest block, of every block, and what goes with AbMILP's gain."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

from pipelines.report.collect import Folders, Inputs
from pipelines.report.sections.geometry import section
from tests.pipelines.report import everything as results
from tests.pipelines.report.written import figures, shown, studied, tables

NAMES = ("a", "b", "c", "d", "e", "f")
GAINS = (1.0, 3.0, 2.0, 5.0, 4.0, 9.0)
RANKS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    probes = {}
    for name, gain, rank in zip(NAMES, GAINS, RANKS, strict=True):
        results.write_geometry(tmp_path, name, ("cls", 0, 5.0), ("cls", 1, rank), ("average", 1, 7.0))
        probes[name, "cls"] = studied(name, "cls", 40.0, "cls")
        probes[name, "abmilp"] = studied(name, "abmilp", 40.0 + gain, "abmilp")
    results.write_geometry(tmp_path, "not shown", ("cls", 1, 99.0))
    return Inputs(probes, folders=Folders(geometry=tmp_path))


def test_numbers_with_their_intervals(inputs: Inputs) -> None:
    by_name = tables(section(inputs))
    assert [column.title for column in by_name["geometry"].columns] == ["Encoder", "Vector", "RankMe"]
    first = shown(by_name["geometry"])[0]
    assert first[:2] == ["a", "[cls]"]
    value, low, high = (float(part.strip("[],")) for part in first[2].split())
    reach = 2.093 * 19 * np.linspace(-0.01, 0.01, 20).std(ddof=1) / np.sqrt(20)  # of the jackknife
    assert (value, low, high) == pytest.approx((10, 10 - reach, 10 + reach), abs=0.05)
    assert len(shown(by_name["geometry"])) == 2 * len(NAMES)
    assert [row[2] for row in shown(by_name["geometry-blocks"])[:3]] == ["0", "1", "1"]


def test_what_goes_with_the_gain(inputs: Inputs) -> None:
    (row,) = shown(tables(section(inputs))["geometry-gains"])
    assert row[:2] == ["[cls]", "RankMe"]  # the average has one number for all
    expected = np.corrcoef(rankdata(RANKS), rankdata(GAINS))[0, 1]
    assert float(row[2]) == pytest.approx(expected, abs=0.005)
    reach = 1.95996 * np.sqrt(1.06 / 3)
    assert row[3] == f"{np.tanh(np.arctanh(expected) - reach):.2f} to {np.tanh(np.arctanh(expected) + reach):.2f}"
    assert row[4] == "6"
    few = {key: probe for key, probe in inputs.probes.items() if key[0] in "abcd"}
    assert "geometry-gains" not in tables(section(Inputs(few, folders=inputs.folders)))


def test_a_line_over_the_blocks_for_each_encoder(inputs: Inputs) -> None:
    (of_cls,) = figures(section(inputs))  # the average is of one block
    assert (of_cls.name, of_cls.title) == ("geometry-rankme-cls", "RankMe, [cls]")
    assert "a: 5.0 in block 0, 10.0 in block 1; b: 5.0 in block 0, 20.0 in block 1" in of_cls.alt


def test_encoders_compared_with_one_another(inputs: Inputs, tmp_path: Path) -> None:
    """Files of several pairs make one table, of the last block of each that was compared."""
    results.write_similarity(tmp_path / "similar/a-b", 0.5, ("a", 1), ("b", 3), ("b", 1))
    results.write_similarity(tmp_path / "similar/c-a", 0.25, ("c", 3), ("a", 3), ("not shown", 3))
    by_name = tables(section(Inputs(inputs.probes, folders=Folders(similarity=tmp_path / "similar"))))
    assert [*by_name] == ["similarity"]
    table = by_name["similarity"]
    assert [column.title for column in table.columns] == ["Encoder", "Measure", "Vector", "a", "b", "c"]
    cka = [[cell.value for cell in row.cells[3:]] for row in table.rows if row.cells[1].value == "CKA, debiased"]
    assert cka == [[None, 0.5, 0.25], [0.5, None, None], [0.25, None, None]]
    low, high = map(float, table.rows[0].cells[4].text.split("[")[1].strip("]").split(", "))
    assert low < 0.5 < high
    assert (low + high) / 2 == pytest.approx(0.5)


def test_outliers_of_the_last_block_and_of_that_with_most(inputs: Inputs, tmp_path: Path) -> None:
    results.write_norms(tmp_path / "norms", "a", {0: 1.0, 3: 9.0, 5: 2.0})
    results.write_norms(tmp_path / "norms", "b", {3: 1.0, 5: 2.0})
    results.write_norms(tmp_path / "norms", "c", {5: 0.0})
    (table,) = tables(section(Inputs(inputs.probes, folders=Folders(norms=tmp_path / "norms")))).values()
    assert [[cell.value for cell in row.cells] for row in table.rows] == [
        ["a", 3, 3.0, 9.0, 50.0, None, None],
        ["a", 5, 3.0, 2.0, 50.0, 3.0, 2.0],
        ["b", 5, 3.0, 2.0, 50.0, 3.0, 2.0],
        ["c", 5, 3.0, 0.0, 50.0, 3.0, 2.0],
    ]
    assert "[" in shown(table)[2][3]
    assert shown(table)[3][3] == "0.00"


@pytest.mark.parametrize("n", [1, 3])
def test_what_goes_with_gains_from_block_to_block(inputs: Inputs, tmp_path: Path, n: int) -> None:
    """Of each encoder by itself, then the mean; a block that only one of [cls], the head and the number has is no point."""
    ranks = ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 6, 5], [6, 5, 4, 3, 2, 1])
    for name, order in zip([*"abc"[:n], "random"], (*ranks[:n], ranks[0]), strict=True):
        results.write_geometry(
            tmp_path / "by-block", name, *(("cls", block, float(block)) for block in range(7)), ("average", 5, 2.0)
        )
        reached = {("cls", "linear"): (10.0,) * 6, ("average", "linear"): tuple(10.0 + rank for rank in order)}
        results.write_by_block(tmp_path / "blocks", name, reached | {("average", "knn"): (50.0, *[1.0] * 5)})
    probes = inputs.probes | {("random", "cls"): studied("random", "cls", 10.0, "cls")}
    folders = Folders(geometry=tmp_path / "by-block", blocks=tmp_path / "blocks")
    depth, row = shown(tables(section(Inputs(probes, folders=folders)))["geometry-gains-by-block"])
    assert depth[1:4] == ["block", "its number", row[3]]
    rhos = [1.0, 1 - 6 * 2 / (6 * 35), -1.0][:n]
    assert row[:3] == ["average", "[cls]", "RankMe"]
    assert float(row[3].replace("−", "-")) == pytest.approx(np.mean(rhos), abs=0.005)
    assert row[5:] == [str(n), str(6 * n)]
    if n == 1:
        assert row[4] == "–"
    else:
        reach = 4.3027 * np.std(rhos, ddof=1) / np.sqrt(3)
        assert row[4] == f"{max(-1, np.mean(rhos) - reach):.2f} to {min(1, np.mean(rhos) + reach):.2f}".replace("-", "−")
