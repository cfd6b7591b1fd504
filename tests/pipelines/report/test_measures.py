"""Encoders by every measure: numbers, ranks that the images allow, and correlations of measures."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm, spearmanr

from pipelines.report.collect import Folders, Inputs
from pipelines.report.estimate import Estimate, of_measure
from pipelines.report.measured import Measure
from pipelines.report.sections.measures import HIGHER, LOWER, NEITHER, ranks, section
from tests.pipelines.report import everything as results
from tests.pipelines.report.written import best, figures, shown, studied, tables

RANKMES = {"a": 10.0, "b": 30.0, "c": 20.0, "d": 50.0, "e": 40.0}


def estimate(mean: float, images: str, error: float = 1.0) -> Estimate:
    """With an interval of ± 2.09 · `error`, that of the mean of 20 groups."""
    without = mean + error * np.linspace(-1, 1, 20) / np.linspace(-1, 1, 20).std(ddof=1) / 19 * 20**0.5
    return of_measure(Measure(mean, 0.0, (mean,), tuple(without)), images, None)


def test_ranks_are_those_of_all_orders_that_clear_differences_allow() -> None:
    random = np.random.default_rng(0)
    spans = set()
    for _ in range(20):
        numbers = {name: estimate(mean, name) for name, mean in zip("abcde", random.uniform(0, 12, 5), strict=True)}
        clear = [(a, b) for a in numbers for b in numbers if numbers[a].minus(numbers[b]).sign == 1]
        allowed = [order for order in permutations(numbers) if all(order.index(a) < order.index(b) for a, b in clear)]
        for name, (rank, first, last) in ranks(numbers, HIGHER).items():
            assert (first, last) == tuple(f(order.index(name) + 1 for order in allowed) for f in (min, max))
            assert rank == sorted(numbers, key=lambda other: -numbers[other].mean).index(name) + 1
            spans.add(last - first)
    assert spans >= {0, 1, 2}


def test_ranks_without_intervals_of_less_and_of_nothing() -> None:
    numbers = {"a": estimate(1.0, "a", 0.1), "b": estimate(3.0, "b", 0.1), "c": Estimate(2.0, 0.0, 0)}
    assert ranks(numbers, HIGHER) == {"b": (1, 1, 2), "c": (2, 1, 3), "a": (3, 2, 3)}
    assert ranks(numbers, LOWER) == {"a": (1, 1, 2), "c": (2, 1, 3), "b": (3, 2, 3)}
    assert ranks(numbers, NEITHER) == {}
    assert ranks({"a": numbers["a"]}, HIGHER) == {}
    same = {name: estimate(value, "the same") for name, value in {"a": 1.0, "b": 1.01}.items()}
    assert ranks(same, HIGHER) == {"b": (1, 1, 1), "a": (2, 2, 2)}, "paired, they differ by the same in all groups"
    alike = {name: estimate(5.0, "the same") for name in "ab"}
    assert ranks(alike, HIGHER) == {"a": (1, 1, 2), "b": (1, 1, 2)}


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    """Five trained encoders of different RankMe and the twin; accuracy falls with it, and [cls] is not all that they have."""
    probes = {}
    for encoder, rankme in {**RANKMES, "random": 99.0}.items():
        results.write_geometry(tmp_path / "geometry", encoder, ("cls", 0, 1.0), ("cls", 1, rankme), ("average", 1, 2.0))
        results.write_few_shot(tmp_path / "few", encoder, rankme)
        results.write_norms(tmp_path / "norms", encoder, {0: 1.0, 1: rankme / 10})
        for head, top1 in (("cls", 90 - rankme), ("average", 95.0)):
            probes[encoder, head] = studied(encoder, head, top1)
    results.write_geometry(tmp_path / "geometry", "not shown", ("cls", 1, 70.0))
    folders = Folders(geometry=tmp_path / "geometry", few_shot=tmp_path / "few", norms=tmp_path / "norms", dataset="main")
    return Inputs(probes, folders=folders)


def test_a_row_for_each_measure(inputs: Inputs) -> None:
    table = tables(section(inputs))["measures"]
    assert [column.title for column in table.columns[4:]] == [part for name in RANKMES for part in (name, "Rank")]
    assert shown(table, slice(0, 7)) == [
        ["Top-1, %", "[cls]", "main", "higher", "80.0", "1 [1, 5]", "60.0"],
        ["Top-1, %", "best head", "main", "higher", "95.0", "1 [1, 5]", "95.0"],
        ["Top-1 from 10 of each class, %", "[cls]", "main", "higher", "20.0", "5 [5, 5]", "40.0"],
        ["Top-1 from 1 of each class, %", "[cls]", "main", "higher", "10.0", "5 [5, 5]", "30.0"],
        ["RankMe", "[cls]", "main", "higher", "10.0", "5 [5, 5]", "30.0"],
        ["Outliers among patch tokens, %", "patch tokens", "main", "neither", "1.00", "–", "3.00"],
    ]
    assert best(table, slice(4, None, 2))[4] == [False, False, False, True, False]
    assert [(row.cells[0].best, row.muted) for row in table.rows] == [(False, False)] * 6
    (figure,) = figures(section(inputs))
    assert "Top-1, best head, main" in figure.svg


def test_the_vector_that_most_encoders_have(inputs: Inputs, tmp_path: Path) -> None:
    vector = {"vector": "pooled", "block": 1, "rankme": results.over_groups(5.0), "two_nn": results.over_groups(7.0)}
    for place, encoder in enumerate(("a", "b", "c")):
        rows = [vector | {"vector": "average"}, *([vector | {"vector": "cls"}] if place else [])]
        results.write_of(tmp_path / "others", encoder, n_images=500, vectors=rows)
    others = replace(inputs, folders=Folders(geometry=tmp_path / "others"))
    rows = shown(tables(section(others))["measures"], slice(0, 4))[2:]
    assert rows == [["RankMe", "average", "higher", "5.0"], ["TwoNN dimension", "average", "neither", "7.0"]]


def test_which_measures_rank_alike(inputs: Inputs) -> None:
    table = tables(section(inputs))["measures-alike"]
    values = [[cell.value for cell in row.cells[2:]] for row in table.rows]
    assert values[4][:5] == [pytest.approx(-1), None, *[pytest.approx(1)] * 3], "accuracy falls with RankMe"
    assert shown(table, slice(2, 5))[4] == ["−1.00", "–", "1.00"], "of these there is no interval"
    assert values[1] == [None] * 6, "the best heads are alike"
    alone = {key: probe for key, probe in inputs.probes.items() if key[0] in ("a", "random")}
    assert section(replace(inputs, probes=alone)) is None


def test_intervals_of_correlations_and_less_that_is_better(inputs: Inputs, tmp_path: Path) -> None:
    tops = dict(zip(RANKMES, (50.0, 60.0, 55.0, 58.0, 70.0), strict=True))
    for encoder, top1 in tops.items():
        results.write_score(
            tmp_path / "scores", "first", encoder, "cls", np.arange(20) < np.array([[4], [6]]), more=-top1 / 100
        )
        inputs.probes[encoder, "cls"] = studied(encoder, "cls", top1)
    table = tables(section(replace(inputs, folders=replace(inputs.folders, scores=tmp_path / "scores"))))["measures-alike"]
    names = [row.cells[1].text for row in table.rows]
    ece, rankme = (names.index(name) for name in ("ECE, [cls], first", "RankMe, [cls], main"))
    assert table.rows[ece].cells[2].text == "1.00", "less ECE is better, and so is more accuracy"
    rho = spearmanr(list(tops.values()), list(RANKMES.values())).statistic
    low, high = (np.tanh(np.arctanh(rho) + side * norm.ppf(0.975) * (1.06 / 2) ** 0.5) for side in (-1, 1))
    assert table.rows[rankme].cells[2].text == f"{rho:.2f} [{low:.2f} to {high:.2f}]".replace("-", "−")
    fewer = replace(inputs, probes={key: probe for key, probe in inputs.probes.items() if key[0] in "abcd"})
    assert "[" not in tables(section(fewer))["measures-alike"].rows[-2].cells[2].text, "four encoders"


def test_data_sets_are_those_of_folders(inputs: Inputs, tmp_path: Path) -> None:
    for name, encoder, percent in (("spair", "a", 30.0), ("spair", "b", 40.0), ("other", "b", 1.0)):
        results.write_correspondence(tmp_path / "pairs" / name, encoder, percent)
    given = replace(inputs, folders=Folders(correspondence=tmp_path / "pairs"))
    rows = [row for row in shown(tables(section(given))["measures"], slice(0, 8)) if row[0].startswith("PCK")]
    assert rows == [
        ["PCK@0.1, pairs, %", "patch tokens", "other", "higher", "–", "–", "0.0", "–"],
        ["PCK@0.1, pairs, %", "patch tokens", "spair", "higher", "29.0", "2 [2, 2]", "39.0", "1 [1, 1]"],
    ]
