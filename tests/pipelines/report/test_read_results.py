"""Results for notebooks: the rows of tables/results.csv, as values."""

import csv
import io
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pipelines.report.collect import Folders, collect_probes
from pipelines.report.read_results import _unify_types, read_results, read_rows
from pipelines.report.results import COLUMNS, to_csv
from pipelines.report.rows import COLUMNS as COLUMNS_OF_ROWS
from store import BeyondClsError
from tests.pipelines.report import everything as results
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


def test_as_pandas_and_arrow(folders: dict[str, Any]) -> None:
    for package in ("pandas", "pyarrow"):
        pytest.importorskip(package, reason=f"{package} is not installed; pip install 'beyondcls[notebook]'")
    frame, table = read_results(**folders).to_pandas(), read_results(**folders).to_arrow()
    assert frame["mean"].dtype == float
    assert math.isnan(frame["std"][1])
    assert list(frame.sort_values("mean")["head"]) == ["cls", "abmilp", "abmilp"]
    assert [str(table.schema.field(name).type) for name in ("mean", "n_seeds")] == ["double", "int64"]
    assert (table.num_rows, table.column("std").null_count) == (3, 1)


def test_in_a_notebook(folders: dict[str, Any]) -> None:
    shown = read_results(**folders)._repr_html_()
    assert "51.50" in shown
    assert ("&lt;b&gt;" in shown, "<b>" in shown) == (True, False)
    assert [_unify_types(values) for values in ([1, 2.5, None], [1, "all", None])] == [[1, 2.5, None], ["1", "all", None]]


@pytest.mark.parametrize("method", ["to_pandas", "to_arrow"])
def test_without_the_packages(method: str, folders: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BeyondClsError, match=rf"{method} needs (pandas|pyarrow), .*; pip install 'beyondcls\[notebook\]'"):
        getattr(read_results(**folders), method)()
    with pytest.raises(BeyondClsError, match=r"read_rows needs pandas"):
        read_rows(folders["datasets"][0])


def test_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(BeyondClsError, match=f"there are no results in {tmp_path}"):
        read_results(tmp_path)
    with pytest.raises(BeyondClsError, match="there are no results in no folder"):
        read_results()


def test_all_numbers_of_a_project_as_one_long_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed; pip install 'beyondcls[notebook]'")
    write_probe(tmp_path / "probes/birds", "random", "abmilp", 51.5, options={"depth": 2}, block=5, n_test=9)
    write_probe(
        tmp_path / "probes/birds", "mae", "cls", 40.0, seeds=(), protocol={"name": "knn"}, train_top1=results.over_seeds(60)
    )
    write_probe(tmp_path / "studies/birds/poolings", "mae", "cls", 41.0, seeds=(0,))
    results.write_segmentation(tmp_path / "segmentation/streets", "mae", {"knn": results.protocol(30.0)}, notes=[])
    results.write_detection(
        tmp_path / "detection/streets",
        "mae",
        results.average_precisions(10.0, 12.0),
        results.average_precisions(8.0, small=None),
    )
    results.write_localisation(tmp_path / "localisation/birds", "mae", results.score_maps(heads=(30,), abmilp=(44, 46)))
    results.write_by_block(tmp_path / "blocks", "mae", {("cls", "linear"): (10.0, 20.0), ("cls", "knn"): (9.0,)})
    results.write_geometry(tmp_path / "geometry/birds", "mae", ("cls", 3, 9.0))
    results.write_similarity(tmp_path / "similarity/birds/mae-dino", 0.5, ("mae", 3), ("dino", 2))
    results.write_norms(tmp_path / "norms/birds", "mae", {3: 4.0})
    by_block = tmp_path / "blocks/mae/description.json"
    by_block.write_text(json.dumps({**json.loads(by_block.read_text()), "seeds": [7]}))
    table = read_rows(tmp_path)
    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns) == COLUMNS_OF_ROWS
    metrics = ("top1", "train_top1", "miou_grid", "ap_small", "max_box_acc_v2", "rankme", "debiased_cka", "share", "attention")
    names = ("kind", "dataset", "study", "encoder", "block", "head", "seed", "value", "n")
    first = table[table.metric.isin(metrics)][[*names]].itertuples(index=False)
    assert [tuple(None if pandas.isna(value) else value for value in row) for row in first] == [
        ("probes", "birds", "", "mae", None, "cls", None, 40.0, 7),
        ("probes", "birds", "", "mae", None, "cls", None, 60.0, 50),
        *(("probes", "birds", "", "random", 5, "abmilp", seed, 51.0 + seed / 2, 9) for seed in range(3)),
        ("studies", "birds", "poolings", "mae", None, "cls", 0, 41.0, 7),
        *(("segmentation", "streets", "", "mae", 11, protocol, None, value, 7) for protocol, value in SEGMENTED.items()),
        ("detection", "streets", "", "mae", 11, "box", None, 2.0, 7),
        *(("localisation", "birds", "", "mae", None, of_map, None, value, 1000) for of_map, value in LOCALISED),
        *(("blocks", "", "", "mae", block, "cls", None, value, 20_000) for block, value in BY_BLOCK),
        ("geometry", "birds", "", "mae", 3, "cls", None, 9.0, 500),
        ("similarity", "birds", "", "mae", None, "mae cls, block 3 and dino cls, block 2", None, 0.5, 500),
        ("norms", "birds", "", "mae", 3, "block 3", None, 4.0, 500),
        ("norms", "birds", "", "mae", 3, "block 3", None, 3.0, 500),
    ]
    assert [*table[table.split == "training"].value] == [60.0]
    assert {*zip(table.encoder, table.family, strict=True)} >= {("mae", "masked image modelling"), ("random", "untrained")}
    (options,) = table[table.encoder == "random"].options.unique()
    assert options == '{"depth": 2}'
    assert set(table[(table.kind == "blocks") & (table.value == 9.0)].recipe) == {'{"name": "knn"}'}
    assert set(table[table.study == "poolings"].folder) == {str(tmp_path / "studies/birds/poolings/mae/cls")}


SEGMENTED = {"knn": 30.0, "most-frequent-class": 6.5, "drawn-by-prior": 9.0}
LOCALISED = [("attention cls", 20), ("attention cls-head-0", 30), ("probe abmilp", 44), ("probe abmilp", 46)]
LOCALISED.append(("baseline centre", 34.5))
BY_BLOCK = [(0, 9.5), (0, 10.0), (0, 10.5), (1, 19.5), (1, 20.0), (1, 20.5), (0, 9.0)]


def test_a_row_of_one_head_is_named_by_its_folders(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed; pip install 'beyondcls[notebook]'")
    folder = write_probe(tmp_path / "birds", "mae", "cls", 50.0, seeds=(0,))
    write_probe(tmp_path / "project/probes", "mae", "cls", 50.0, seeds=(0,))
    for place, dataset in ((folder, "birds"), (folder.parents[1], "birds"), (tmp_path / "project", "")):
        row = read_rows(place).iloc[0]
        assert (row.kind, row.dataset, row.encoder, row["head"]) == ("probes", dataset, "mae", "cls")
