"""Results for notebooks: the rows of tables/results.csv, as values."""

import csv
import io
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pipelines.report.collect import Folders, collect_probes
from pipelines.report.read_results import _of_one_type, read_results
from pipelines.report.results import COLUMNS, to_csv
from store import BeyondClsError
from tests.pipelines.report.written import write_probe


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Any]:
    """Heads of a data set, and of a study; names that HTML could take for markup."""
    write_probe(tmp_path / "probes/birds", "mae", "abmilp", 51.5, options={"depth": 2})
    write_probe(tmp_path / "probes/birds", "mae", "cls", 40.0, seeds=(0,))
    write_probe(tmp_path / "studies/<b>", "mae", "abmilp", 52.0)
    return {"datasets": [tmp_path / "probes"], "studies": [str(tmp_path / "studies")]}


def lines_of(folders: dict[str, Iterable[Any]]) -> list[dict[str, str]]:
    paths = {name: tuple(map(Path, given)) for name, given in folders.items()}
    return list(csv.DictReader(io.StringIO(to_csv(collect_probes(Folders(**paths))))))


def test_values_are_those_of_the_table(folders: dict[str, Any]) -> None:
    found = read_results(**folders)
    assert len(found) == 3
    assert [result.study for result in found] == ["", "", "<b>"]
    columns = found.columns
    assert list(columns)[: len(COLUMNS)] == list(COLUMNS)
    assert columns["mean"] == [51.5, 40.0, 52.0]
    assert columns["std"] == [0.5, None, 0.5]
    assert columns["options"][0] == '{"depth": 2}'
    assert columns["n_seeds"] == [3, 1, 3]
    for row, line in enumerate(lines_of(folders)):
        assert {name: "" if values[row] is None else str(values[row]) for name, values in columns.items()} == line


def test_as_pandas(folders: dict[str, Any]) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed; pip install 'beyondcls[notebook]'")
    table = read_results(**folders).to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table["mean"].dtype == float
    assert math.isnan(table["std"][1])
    assert list(table.sort_values("mean")["head"]) == ["cls", "abmilp", "abmilp"]


def test_as_arrow(folders: dict[str, Any]) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install 'beyondcls[notebook]'")
    table = read_results(**folders).to_arrow()
    assert table.num_rows == 3
    assert str(table.schema.field("mean").type) == "double"
    assert str(table.schema.field("n_seeds").type) == "int64"
    assert table.column("std").null_count == 1


def test_a_column_of_mixed_types_is_text() -> None:
    assert _of_one_type([1, 2.5, None]) == [1, 2.5, None]
    assert _of_one_type([1, "all", None]) == ["1", "all", None]
    assert _of_one_type([True, 2]) == ["True", "2"]


def test_in_a_notebook(folders: dict[str, Any]) -> None:
    shown = read_results(**folders)._repr_html_()
    assert "51.50" in shown
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown


@pytest.mark.parametrize("method", ["to_pandas", "to_arrow"])
def test_without_the_packages(method: str, folders: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BeyondClsError, match=rf"{method} needs (pandas|pyarrow), .*; pip install 'beyondcls\[notebook\]'"):
        getattr(read_results(**folders), method)()


def test_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=f"there are no results in {tmp_path}; give PROBES/ENCODER/HEAD"):
        read_results(tmp_path)
    with pytest.raises(BeyondClsError, match="there are no results in no folder"):
        read_results()
