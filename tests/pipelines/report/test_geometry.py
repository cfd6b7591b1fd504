"""The section about vectors without a head: numbers of the deepest block, of every block, and what goes with AbMILP's gain."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

from pipelines.report.collect import Folders, Inputs
from pipelines.report.sections.geometry import section
from tests.pipelines.report.everything import write_geometry
from tests.pipelines.report.written import shown, studied, tables

NAMES = ("a", "b", "c", "d", "e", "f")
GAINS = (1.0, 3.0, 2.0, 5.0, 4.0, 9.0)
RANKS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    probes = {}
    for name, gain, rank in zip(NAMES, GAINS, RANKS, strict=True):
        write_geometry(tmp_path, name, ("cls", 0, 5.0), ("cls", 1, rank), ("average", 1, 7.0))
        probes[name, "cls"] = studied(name, "cls", 40.0, "cls")
        probes[name, "abmilp"] = studied(name, "abmilp", 40.0 + gain, "abmilp")
    write_geometry(tmp_path, "not shown", ("cls", 1, 99.0))
    return Inputs(probes, folders=Folders(geometry=tmp_path))


def test_nothing_where_it_was_not_measured(tmp_path: Path, inputs: Inputs) -> None:
    assert section(Inputs(inputs.probes)) is None
    assert section(Inputs(inputs.probes, folders=Folders(geometry=tmp_path / "none"))) is None


def test_numbers_with_their_intervals(inputs: Inputs) -> None:
    by_name = tables(section(inputs))
    assert [column.title for column in by_name["geometry"].columns] == ["Encoder", "Vector", "RankMe"]
    first = shown(by_name["geometry"])[0]
    assert first[:2] == ["a", "[cls]"]
    value, low, high = (float(part.strip("[],")) for part in first[2].split())
    pseudo = 20 * 10.0 - 19 * (10.0 + np.linspace(-0.01, 0.01, 20))
    reach = 2.093 * pseudo.std(ddof=1) / np.sqrt(20)
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


def test_too_few_encoders_for_a_correlation(inputs: Inputs) -> None:
    few = {key: probe for key, probe in inputs.probes.items() if key[0] in "abcd"}
    assert "geometry-gains" not in tables(section(Inputs(few, folders=inputs.folders)))
