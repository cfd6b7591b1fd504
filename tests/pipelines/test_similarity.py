"""How alike vectors are: against definitions in full, what must not change them, and the command."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from pipelines.similarity import main
from probe.similarity import SIMILARITY, ImageVectors
from probe.subsets import groups_of
from store import BeyondClsError
from tests.features import write_features

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(120, 12)), RANDOM.normal(size=(120, 20))
RELATED = X @ RANDOM.normal(size=(12, 20)) + 2 * Y


def value(measure: str, x: np.ndarray, y: np.ndarray, chosen: np.ndarray | None = None) -> float:
    return SIMILARITY[measure](ImageVectors(x), ImageVectors(y), np.full(len(x), True) if chosen is None else chosen)


@pytest.mark.parametrize("measure", SIMILARITY)
def test_images_that_are_left_out_are_as_if_they_were_not_there(measure):
    for group in (0, 19):
        chosen = groups_of(120) != group
        assert value(measure, X, RELATED, chosen) == pytest.approx(value(measure, X[chosen], RELATED[chosen]), rel=1e-9)


def hsic(x: np.ndarray, y: np.ndarray) -> float:
    """Eq. 5 of Song et al., with matrices of all pairs."""
    n = len(x)
    k, m = (v @ v.T * (1 - np.eye(n)) for v in (x - x.mean(0), y - y.mean(0)))
    one = np.ones(n)
    terms = np.trace(k @ m) + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ k @ m @ one)
    return terms / (n * (n - 3))


def test_debiased_cka_by_its_definition():
    expected = hsic(X, RELATED) / math.sqrt(hsic(X, X) * hsic(RELATED, RELATED))
    assert value("debiased_cka", X, RELATED) == pytest.approx(expected, rel=1e-10)


def test_cka_by_its_definition():
    centre = np.eye(120) - 1 / 120
    k, m = (centre @ v @ v.T @ centre for v in (X, RELATED))
    expected = np.trace(k @ m) / math.sqrt(np.trace(k @ k) * np.trace(m @ m))
    assert value("cka", X, RELATED) == pytest.approx(expected, rel=1e-10)


def test_unrelated_vectors_of_few_images():
    assert value("cka", X, Y) > 0.1
    assert value("debiased_cka", X, Y) == pytest.approx(0, abs=0.03)


def test_mutual_neighbours_by_their_definition():
    near = []
    for x in (X, RELATED):
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        angles = unit @ unit.T - 3 * np.eye(120)
        near.append([set(row) for row in angles.argsort(1)[:, -10:].tolist()])
    expected = np.mean([len(a & b) / 10 for a, b in zip(*near, strict=True)])
    assert value("mutual_knn", X, RELATED) == pytest.approx(expected)


def test_procrustes_is_the_best_rotation():
    x, y = ((v - v.mean(0)) / np.linalg.norm(v - v.mean(0)) for v in (X, RELATED[:, :12]))
    rotation, reached = scipy.linalg.orthogonal_procrustes(x, y)
    assert value("procrustes", X, RELATED[:, :12]) == pytest.approx(reached) == pytest.approx(np.sum((x @ rotation) * y))


def test_the_command(tmp_path: Path) -> None:
    sets = [
        str(write_features(tmp_path / name, vectors=(0, 1)[i:], weights=name, invalid=(3 + i,)).path)
        for i, name in enumerate("ab")
    ]
    main(sets, tmp_path / "out", ["cls"])
    described = json.loads((tmp_path / "out/description.json").read_text())
    assert described["n_images"] == 94
    blocks = [(pair["a"]["block"], pair["b"]["block"]) for pair in described["pairs"]]
    assert sorted(blocks) == [(0, 1), (0, 1), (1, 1)]
    first = described["pairs"][0]
    assert len(first["mutual_knn"]["without"]) == 20
    with (tmp_path / "out/similarity.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(SIMILARITY)
    assert float(rows[0]["value"]) == first[rows[0]["measure"]]["mean"]
    main(sets, tmp_path / "deepest", ["cls"], ["cka"], deepest=True)
    (pair,) = json.loads((tmp_path / "deepest/description.json").read_text())["pairs"]
    assert (pair["a"]["block"], pair["b"]["block"]) == (1, 1)


@pytest.mark.parametrize(
    ("others", "options", "named"),
    [
        ([], {"vector": ["clss"]}, "clss.*cls"),
        ([], {"vector": ["cls"]}, "one vector.*encoder-w cls, block 1"),
        ([], {"images": 30}, "30.*compare more images"),
        ([90], {}, "of other images"),
    ],
)
def test_what_cannot_be(others: list[int], options: dict[str, Any], named: str, tmp_path: Path) -> None:
    sets = [str(write_features(tmp_path / str(n), n=n, vectors=(1,)).path) for n in (96, *others)]
    with pytest.raises(BeyondClsError, match=named):
        main(sets, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
