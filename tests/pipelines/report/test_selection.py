"""The section on selection without training: sentences and tables from the numbers, heat maps that hold names safely."""

import math
from pathlib import Path

import pytest

from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Section, Table
from pipelines.report.sections.selection import section
from tests.pipelines.report import written as parts
from tests.pipelines.report.everything import over_seeds, write_divergence
from tests.pipelines.report.written import write_all, write_probe

PCA, NORM = 50.0, 48.0


def write_study(root: Path, encoder: str = "mae", **top1: float) -> Path:
    """Heads of the study by aggregator, "_" standing for "-"; each has an entropy of 1.1 nats."""
    for name, value in top1.items():
        write_probe(root / "studies/selection", encoder, name.replace("_", "-"), value, entropy=over_seeds(1.1))
    return root / "studies"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_all(tmp_path)
    return tmp_path


def inputs_of(root: Path) -> Inputs:
    folders = {name: root / name for name in ("probes", "attention", "studies", "divergence")}
    return collect(Folders(**folders | {"studies": (folders["studies"],)}))


def built(root: Path) -> Section:
    result = section(inputs_of(root))
    assert result is not None
    return result


def tables(root: Path) -> dict[str, Table]:
    return parts.tables(built(root))


def texts(root: Path, kind: str) -> list[str]:
    return parts.words(built(root), kind)


def rows(table: Table) -> dict[str, list[str]]:
    return {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in table.rows}


def test_untrained_selections_are_heads_without_parameters_that_weight_patches_unevenly(root: Path):
    """By its numbers alone: also a custom head. Average has none and weights all alike, [cls] and max weight nothing."""
    found = {"own": (0, 1.1), "even": (0, math.log(4)), "weightless": (0, None), "trained": (193, 1.1), "unknown": (None, 1.1)}
    for head, (parameters, entropy) in found.items():
        measured = {} if entropy is None else {"entropy": over_seeds(entropy)}
        write_probe(root / "studies/selection", "mae", head, 50.0, cost={"parameters": parameters}, **measured)
    groups = {row.cells[0].text: row.group for row in tables(root)["selection"].rows}
    assert [groups[head] for head in found] == ["selected without training", *["others"] * 4]


class TestTable:
    def test_selections_and_what_they_are_held_against(self, root: Path):
        write_study(root, pca=PCA)
        write_study(root, "random", pca=35.5)
        write_probe(root / "studies/selection", "mae", "norm", NORM, entropy=over_seeds(1.1), options={"top_k": 16})
        table = tables(root)["selection"]
        of_encoders = [f"{what}_{e}" for e in ("mae", "random") for what in ("top1", "entropy", "effective_patches")]
        assert [column.name for column in table.columns] == ["head", "aggregator", *of_encoders]
        assert rows(table) == {
            "[cls]": ["cls", "46.2 ± 0.5", "–", "–", "34.0 ± 0.5", "–", "–"],
            "average": ["average", "48.5 ± 0.5", "–", "–", "35.0 ± 0.5", "–", "–"],
            "AbMILP": ["abmilp, depth 1", "51.5 ± 0.5", "1.10", "3.0", "36.5 ± 0.5", "1.10", "3.0"],
            "norm": ["norm, top_k 16", "48.0 ± 0.5", "1.10", "3.0", "–", "–", "–"],
            "pca": ["pca", "50.0 ± 0.5", "1.10", "3.0", "35.5 ± 0.5", "1.10", "3.0"],
        }
        assert [row.cells[0].text for row in table.rows][3:] == ["pca", "norm"], "by accuracy"
        assert [row.group for row in table.rows] == ["for reference"] * 3 + ["selected without training"] * 2
        assert [row.cells[0].text for row in table.rows if row.cells[2].best or row.cells[5].best] == ["AbMILP"]
        assert "ln 4 = 1.39 the plain average" in table.note

    def test_trained_heads_of_the_study_stand_apart_and_win_over_others_of_their_name(self, root: Path):
        write_study(root, pca=PCA, sa_abmilp=52.0, abmilp=40.0)
        table = tables(root)["selection"]
        assert {row.cells[0].text: row.group for row in table.rows}["sa-abmilp"] == "others"
        assert rows(table)["AbMILP"][1] == "40.0 ± 0.5"


def test_each_selection_is_compared_with_abmilp_and_the_average(root: Path):
    write_study(root, pca=PCA, norm=NORM)
    against = tables(root)["selection-gains"]
    assert parts.shown(against, slice(4)) == [
        ["mae", "pca", "AbMILP", "−1.5 ± 0.7"],
        ["mae", "norm", "AbMILP", "−3.5 ± 0.7"],
        ["mae", "pca", "average", "+1.5 ± 0.7"],
        ["mae", "norm", "average", "−0.5 ± 0.7"],
    ]
    write_study(root, "other", pca=PCA)  # nothing to compare with
    assert "other" not in {row.cells[0].text for row in tables(root)["selection-gains"].rows}


def test_other_features_recipes_and_divergences_are_noticed(root: Path):
    changes = {"features": {"training": "a", "test": "b"}, "recipe": {"epochs": 90}}
    write_divergence(root / "divergence", "mae", ("pca", "abmilp", 0.5, 0), key="else")
    write_divergence(root / "divergence", "random", ("pca", "abmilp", 0.5, 0))
    write_probe(root / "studies/selection", "mae", "pca", PCA, **changes)
    write_study(root, "random", pca=PCA)
    features, recipe, divergences = texts(root, "notice")
    assert "The heads of mae were trained or tested on different feature sets" in features
    assert "Not all heads of mae" in recipe
    assert "The divergences of mae are of another feature set" in divergences


DIVERGENCES = (
    ("average", "abmilp", 0.5, 0),
    ("abmilp", "average", 0.25, 0),
    ("abmilp", "pca", "", 10),
    ("pca", "abmilp", 0.75, 0),
    ("average", "pca", 2.0, 6),
    ("pca", "average", 1.0, 2),
)


def test_divergences_in_both_directions_and_what_is_infinite(root: Path):
    write_divergence(root / "divergence", "mae", *DIVERGENCES)
    write_divergence(root / "divergence", "not-probed", ("a", "b", 1.0, 0))
    of_mae, every = tables(root)["divergence-mae"], tables(root)["divergence"]
    assert [column.title for column in of_mae.columns] == ["p", "average", "AbMILP", "pca"]
    assert parts.shown(of_mae) == [["average", "0", "0.50", "∞"], ["AbMILP", "0.25", "0", "∞"], ["pca", "1.00*", "0.75", "0"]]
    assert parts.shown(every)[2:5] == [
        ["mae", "AbMILP", "pca", "∞", "10", "10"],
        ["mae", "pca", "AbMILP", "0.750 ± 0.125", "10", "0"],
        ["mae", "average", "pca", "2.000 ± 0.125", "10", "6"],
    ]
    assert [row.cells[0].text for row in every.rows] == ["mae"] * 6 + ["not-probed"]
    assert parts.shown(tables(root)["divergence-not-probed"]) == [["a", "0", "1.00"], ["b", "–", "0"]]
