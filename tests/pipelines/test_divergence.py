"""`beyondcls divergence` on small folders."""

import csv
import json
import math
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from probe.result_files import METRICS, write_result
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
def divergence(beyondcls):
    return partial(beyondcls, "divergence")


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


def test_writes_every_pair_in_both_directions(divergence, probes, tmp_path):
    write_head(tmp_path / "study/pca", FIRST, "pca")
    output = divergence("--probes", probes, "--probes", tmp_path / "study", "--out", tmp_path / "out")
    assert "6 divergences between 3 heads of mae" in output
    by_pair = pairs(tmp_path / "out/divergence.csv")
    ln2, ln4 = math.log(2), math.log(4)
    assert {pair: float(mean) for pair, (mean, *_) in by_pair.items() if mean} == {
        ("abmilp", "average"): pytest.approx(ln2),
        ("pca", "average"): pytest.approx(ln4),
        ("pca", "abmilp"): pytest.approx(ln2),
    }
    assert {pair for pair, (mean, std, n, infinite) in by_pair.items() if (mean, std, n, infinite) == ("", "", "5", "5")} == {
        ("average", "abmilp"),
        ("average", "pca"),
        ("abmilp", "pca"),
    }
    entropies = {r["head"]: (float(r["mean"]), float(r["std"])) for r in rows(tmp_path / "out/entropy.csv")}
    expected = {"average": ln4, "abmilp": ln2, "pca": 0}
    assert entropies == {head: (pytest.approx(value), pytest.approx(0)) for head, value in expected.items()}
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary.pop("command").startswith("beyondcls divergence --probes")
    assert summary == {"encoder": "mae", "key": "k", "n_images": 5, "n_tokens": 4, "heads": ["abmilp", "average", "pca"]}


def test_a_head_in_two_folders_counts_once(divergence, probes, tmp_path):
    write_head(tmp_path / "q/abmilp", HALF)
    divergence("--probes", probes, "--probes", tmp_path / "q", "--out", tmp_path / "out")
    assert len(pairs(tmp_path / "out/divergence.csv")) == 2
    write_head(tmp_path / "r/abmilp", FIRST)
    output = divergence("--probes", probes, "--probes", tmp_path / "r", "--out", tmp_path / "out", fails=True)
    assert "have different weights, expected one head of each name; rename one" in output


class TestAttention:
    def heads(self, divergence, probes, tmp_path, attention) -> set[str]:
        divergence("--probes", probes, "--attention", attention, "--out", tmp_path / "out")
        return {head for pair in pairs(tmp_path / "out/divergence.csv") for head in pair}

    def test_is_compared_too(self, divergence, probes, tmp_path):
        attention = write_attention(tmp_path / "a", HALF)
        assert self.heads(divergence, probes, tmp_path, attention) == {"average", "abmilp", "[cls] attention"}
        assert float(pairs(tmp_path / "out/divergence.csv")["[cls] attention", "abmilp"][0]) == 0

    @pytest.mark.parametrize(("options", "compared"), [({}, False), ({"of": "joined"}, True), ({"top_k": 2}, True)])
    def test_unless_a_head_weights_by_it(self, options, compared, divergence, probes, tmp_path):
        write_head(probes / "map", HALF, "cls-attention", **options)
        heads = self.heads(divergence, probes, tmp_path, write_attention(tmp_path / "a", HALF))
        assert ("[cls] attention" in heads) == compared
        assert "map" in heads

    def test_encoders_without_cls_have_none(self, divergence, probes, tmp_path):
        attention = write_attention(tmp_path / "a", None)
        output = divergence("--probes", probes, "--attention", attention, "--out", tmp_path / "out")
        assert "has no cls_map.npy: the encoder has no [cls]" in output
        assert self.heads(divergence, probes, tmp_path, attention) == {"average", "abmilp"}

    def test_of_other_images(self, divergence, probes, tmp_path):
        attention = write_attention(tmp_path / "a", HALF, key="other")
        output = divergence("--probes", probes, "--attention", attention, "--out", tmp_path / "out", fails=True)
        assert "is of the feature set k and" in output
        assert "of other, expected one; give heads of one encoder" in output
        assert not (tmp_path / "out").exists()

    def test_that_is_not_there(self, divergence, probes, tmp_path):
        output = divergence("--probes", probes, "--attention", tmp_path / "nowhere", "--out", tmp_path / "out", fails=True)
        assert "there is no" in output
        assert "expected what `beyondcls attention --out" in output


ARRAY, METRICS_FILE = "abmilp/trained/weights.npy", "abmilp/metrics.json"


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (lambda p: write_head(p / "foreign", UNIFORM, key="z"), ["of the feature set k and"]),
        (lambda p: write_head(p / "joined", UNIFORM[:4]), ["are 5 x 4 (images x patches)", "4 x 4, expected the same"]),
        (lambda p: write_head(p / "bad", np.full_like(UNIFORM, np.nan)), ["have nan among them in row 0 (5 of 5 rows)"]),
        *((lambda p, c=c: (p / ARRAY).write_bytes(c), ["weights.npy is damaged"]) for c in (b"nothing", b"")),
        *(
            (lambda p, c=c: describe(p / METRICS_FILE, c), ["metrics.json is missing or damaged"])
            for c in ("{", "[]", '{"encoder": "mae"}', OTHER)
        ),
        (lambda p: [shutil.rmtree(p / name) for name in ("average", "abmilp")], ["there are no weights under"]),
    ],
)
def test_what_cannot_be_compared(damage, messages, divergence, probes, tmp_path):
    damage(probes)
    output = divergence("--probes", probes, "--out", tmp_path / "out", fails=True)
    assert all(message in output for message in messages)
    assert not (tmp_path / "out").exists()
