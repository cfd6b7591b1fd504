"""Divergence between weights, against scipy's; `beyondcls divergence` on small folders."""

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import entropy

from probe.divergence import Divergence, distributions, kl_divergence
from probe.result_files import METRICS, write_result
from store import BeyondClsError
from tests.pipelines.report.written import describe

UNIFORM = np.full((5, 4), 0.25, np.float32)
FIRST = np.eye(4, dtype=np.float32)[[0] * 5]
HALF = np.array([[0.5, 0.5, 0, 0]] * 5, np.float16)


def write_head(folder: Path, weights: np.ndarray | None, aggregator: str = "abmilp", key: str = "k", **options) -> Path:
    (folder / "trained").mkdir(parents=True)
    metrics = {"encoder": "mae", "aggregator": aggregator, "options": options, "features": {"training": "t", "test": key}}
    write_result(folder / METRICS, metrics)
    if weights is not None:
        np.save(folder / "trained/weights.npy", weights)
    return folder


def write_attention(folder: Path, maps: np.ndarray | None, key: str = "k") -> Path:
    (folder / "maps").mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"encoder": "mae", "key": key}))
    if maps is not None:
        np.save(folder / "maps/cls_map.npy", maps)
    return folder


@pytest.fixture
def probes(tmp_path) -> Path:
    write_head(tmp_path / "p/average", UNIFORM, "average")
    write_head(tmp_path / "p/abmilp", HALF)
    write_head(tmp_path / "p/cls", None, "cls")
    return tmp_path / "p"


OTHER = '{"encoder": "mae", "aggregator": "abmilp", "options": [], "features": []}'


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as source:
        return list(csv.DictReader(source))


def pairs(file: Path) -> dict[tuple[str, str], tuple[str, ...]]:
    return {(r["from"], r["to"]): (r["mean"], r["std"], r["n_images"], r["n_infinite"]) for r in rows(file)}


def test_writes_every_pair_in_both_directions(beyondcls, probes, tmp_path):
    write_head(tmp_path / "study/pca", FIRST, "pca")
    write_head(tmp_path / "study/abmilp", HALF)  # the same in two folders, which counts once
    output = beyondcls("divergence", "--probes", probes, "--probes", tmp_path / "study", "--out", tmp_path / "out")
    assert "6 divergences between 3 heads of mae" in output
    ln2, ln4 = math.log(2), math.log(4)
    means = {("abmilp", "average"): ln2, ("pca", "average"): ln4, ("pca", "abmilp"): ln2}
    for pair, (mean, std, n, infinite) in pairs(tmp_path / "out/divergence.csv").items():
        if pair in means:
            assert (float(mean), float(std), n, infinite) == (pytest.approx(means.pop(pair)), pytest.approx(0), "5", "0")
        else:
            assert (mean, std, n, infinite) == ("", "", "5", "5")
    assert not means
    entropies = {r["head"]: (float(r["mean"]), float(r["std"])) for r in rows(tmp_path / "out/entropy.csv")}
    expected = {"average": ln4, "abmilp": ln2, "pca": 0}
    assert entropies == {head: (pytest.approx(value), pytest.approx(0)) for head, value in expected.items()}
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary.pop("command").startswith("beyondcls divergence --probes")
    assert summary == {"encoder": "mae", "key": "k", "n_images": 5, "n_tokens": 4, "heads": ["abmilp", "average", "pca"]}
    write_head(tmp_path / "r/abmilp", FIRST)
    output = beyondcls("divergence", "--probes", probes, "--probes", tmp_path / "r", "--out", tmp_path / "out", fails=True)
    assert "have different weights, expected one head of each name; rename one" in output


@pytest.mark.parametrize(
    ("aggregator", "options", "compared"),
    [
        ("max", {}, True),
        ("cls-attention", {}, False),
        ("cls-attention", {"of": "joined"}, True),
        ("cls-attention", {"top_k": 2}, True),
    ],
)
def test_attention_is_compared_unless_a_head_weights_by_it(aggregator, options, compared, beyondcls, probes, tmp_path):
    write_head(probes / "map", HALF, aggregator, **options)
    attention = write_attention(tmp_path / "a", HALF)
    beyondcls("divergence", "--probes", probes, "--attention", attention, "--out", tmp_path / "out")
    found = pairs(tmp_path / "out/divergence.csv")
    assert {head for pair in found for head in pair} == {"average", "abmilp", "map", *["[cls] attention"] * compared}
    assert not compared or float(found["[cls] attention", "abmilp"][0]) == 0


def test_attention_of_encoders_without_cls_or_of_other_images(beyondcls, probes, tmp_path):
    given = ("--probes", probes, "--out", tmp_path / "out", "--attention")
    said = beyondcls("divergence", *given, write_attention(tmp_path / "a", HALF, key="other"), fails=True)
    assert "is of the feature set k and" in said
    assert "of other, expected one; give heads of one encoder" in said
    assert "expected what `beyondcls attention --out" in beyondcls("divergence", *given, tmp_path / "nowhere", fails=True)
    assert not (tmp_path / "out").exists()
    assert "has no cls_map.npy: the encoder has no [cls]" in beyondcls(
        "divergence", *given, write_attention(tmp_path / "b", None)
    )
    assert {head for pair in pairs(tmp_path / "out/divergence.csv") for head in pair} == {"average", "abmilp"}


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (lambda p: write_head(p / "foreign", UNIFORM, key="z"), ["of the feature set k and"]),
        (lambda p: write_head(p / "joined", UNIFORM[:4]), ["are 5 x 4 (images x patches)", "4 x 4, expected the same"]),
        (lambda p: write_head(p / "bad", np.full_like(UNIFORM, np.nan)), ["have nan among them in row 0 (5 of 5 rows)"]),
        (lambda p: (p / "abmilp/trained/weights.npy").write_bytes(b""), ["weights.npy is damaged"]),
        (lambda p: describe(p / f"abmilp/{METRICS}", "[]"), ["metrics.json is missing or damaged"]),
        (lambda p: describe(p / f"abmilp/{METRICS}", OTHER), ["metrics.json is missing or damaged"]),
        (lambda p: [shutil.rmtree(p / name) for name in ("average", "abmilp")], ["there are no weights under"]),
    ],
)
def test_what_cannot_be_compared(damage, messages, beyondcls, probes, tmp_path):
    damage(probes)
    output = beyondcls("divergence", "--probes", probes, "--out", tmp_path / "out", fails=True)
    assert all(message in output for message in messages)
    assert not (tmp_path / "out").exists()


def test_as_scipy():
    """0 ln 0 is 0; images of infinite divergence are counted and left out."""
    p = np.random.default_rng(0).dirichlet(np.full(6, 0.3), 200)
    p = distributions(np.where(p < 0.01, 0, p), "p")
    for q in (p, p[::-1], np.full_like(p, 1 / 6)):
        expected = entropy(p, q, axis=1).clip(min=0)
        finite = expected[np.isfinite(expected)]
        mean, std = (pytest.approx(value, abs=1e-12) for value in (finite.mean(), finite.std()))
        assert kl_divergence(p, q) == Divergence(mean, std, 200, 200 - len(finite))
    assert kl_divergence(np.full((3, 4), 0.25), np.eye(4)[:3]) == Divergence(None, None, 3, 3)


def test_never_below_0():
    rows = np.random.default_rng(1).random((2000, 9)) + 1e-3
    nearly = distributions(rows * (1 + 1e-16 * np.arange(9)) + 1e-17, "nearly")
    each = [kl_divergence(distributions(rows, "x")[i : i + 1], nearly[i : i + 1]).mean for i in range(2000)]
    assert min(each) >= 0


def test_rows_sum_to_1_in_double_precision():
    rounded = np.random.default_rng(2).random((20, 196)).astype(np.float16)
    before, rows = rounded.copy(), distributions(rounded, "x")
    assert rows.dtype == np.float64
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-15)
    np.testing.assert_allclose(rows[3] / rows[3, 0], rounded[3].astype(np.float64) / float(rounded[3, 0]), rtol=1e-14)
    np.testing.assert_array_equal(rounded, before)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[0.5, 0.5], [np.nan, 1.0]], r"weights of pool have nan among them in row 1 \(1 of 2 rows\)"),
        ([[0.5, 0.5], [-0.25, 1.25]], r"weights of pool have -0.25 among them in row 1"),
        ([[0.0, 0.0], [0.0, 0.0]], r"weights of pool have a sum of 0 in row 0 \(2 of 2 rows\).* leave this head out"),
        ([0.5, 0.5], r"weights of pool are float64 of shape \[2\], expected floats \[N, T\]"),
        (np.zeros((0, 4)), r"weights of pool are float64 of shape \[0, 4\], expected"),
        ([[1, 0]], r"weights of pool are int64 of shape \[1, 2\], expected floats"),
    ],
)
def test_what_is_no_distribution(weights, message):
    with pytest.raises(BeyondClsError, match=message):
        distributions(np.asarray(weights), "pool")
