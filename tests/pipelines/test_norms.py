"""Norms of patch tokens: outliers that were put there are found, and what they draw is what it is."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipelines.norms import main
from probe.result_files import write_result
from probe.subsets import groups_of
from probe.token_norms import TokenNorms
from store import BeyondClsError, FeatureStore
from tests.features import write_features

N, T = 60, 9


@pytest.fixture
def tokens() -> TokenNorms:
    """Norms of about 1; in every third image patch 4 has 10."""
    norms = np.random.default_rng(0).uniform(0.9, 1.1, size=(N, T))
    norms[::3, 4] = 10
    return TokenNorms(norms)


def test_outliers_are_counted_and_placed(tokens: TokenNorms) -> None:
    measured = tokens.measures({})
    assert measured["share"]["mean"] == pytest.approx(100 / 3 / T)
    assert measured["images"]["mean"] == pytest.approx(100 / 3)
    assert tokens.where.tolist() == pytest.approx([0, 0, 0, 0, 1 / 3, 0, 0, 0, 0])
    groups = groups_of(N)
    expected = [100 * tokens.outliers[groups != group].any(1).mean() for group in range(20)]
    assert measured["images"]["without"] == pytest.approx(expected)


def test_what_they_draw(tokens: TokenNorms) -> None:
    equal = np.full((N, T), 1 / T)
    twice = np.full((N, T), (1 - 2 / T) / (T - 1))
    twice[:, 4] = 2 / T
    drawn = tokens.measures({"equal": equal, "twice": twice})
    assert (drawn["equal"]["mean"], drawn["twice"]["mean"]) == (pytest.approx(1), pytest.approx(2))
    without = TokenNorms(np.ones((N, T))).measures({"equal": equal})
    assert without["share"]["mean"] == 0
    assert "equal" not in without, "without outliers nothing is drawn"


def test_the_command(tmp_path: Path) -> None:
    store = write_features(tmp_path / "set", n=N, n_tokens=T, blocks=(0, 1), invalid=(3,))
    main(str(tmp_path / "set"), tmp_path / "out", times=1.5)
    described = json.loads((tmp_path / "out/description.json").read_text())
    norms = np.linalg.norm(FeatureStore.open(store.path).tokens("patch", block=1).rows(np.flatnonzero(store.valid)), axis=2)
    assert [row["block"] for row in described["blocks"]] == [0, 1]
    last = described["blocks"][1]
    assert last["quantiles"]["0.5"] == pytest.approx(np.median(norms), rel=1e-3)
    assert last["share"]["mean"] == pytest.approx(100 * (norms > 1.5 * np.median(norms)).mean(), abs=0.2)
    assert last["attention"]["mean"] > 0
    with np.load(tmp_path / "out/where.npz") as where:
        assert where["block1"].shape == (3, 3)
        assert 100 * where["block1"].mean() == pytest.approx(last["share"]["mean"])
    assert (tmp_path / "out/block1.svg").read_text().startswith("<?xml")


def test_what_cannot_be(tmp_path: Path) -> None:
    write_features(tmp_path / "set", n=N, n_tokens=T)
    with pytest.raises(BeyondClsError, match=r"times is 0.5, expected a number above 1"):
        main(str(tmp_path / "set"), tmp_path / "out", times=0.5)
    write_features(tmp_path / "bare", n=N)
    shutil.rmtree(tmp_path / "bare/patch")
    with pytest.raises(BeyondClsError, match=r"bare has no patch tokens; extract it with --blocks"):
        main(str(tmp_path / "bare"), tmp_path / "out")
    (tmp_path / "probes/abmilp/trained").mkdir(parents=True)
    np.save(tmp_path / "probes/abmilp/trained/weights.npy", np.full((N, T), 1 / T))
    described = {"encoder": "e", "aggregator": "abmilp", "options": {}, "features": {"test": "another"}}
    write_result(tmp_path / "probes/abmilp/metrics.json", described)
    with pytest.raises(BeyondClsError, match="another"):
        main(str(tmp_path / "set"), tmp_path / "out", [tmp_path / "probes"])
