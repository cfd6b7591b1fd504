"""Heads that need a square grid of patches refuse any other, even one whose number of patches is a square."""

import pytest

from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.run import probe
from store import StoreError
from tests.features import write_features

RECIPE = Recipe(epochs=1, batch_size=8, warmup_epochs=0)


@pytest.fixture
def store(tmp_path):
    """24 images of 4 x 9 patches."""
    store = write_features(tmp_path / "set", 24, 36, 8)
    store.attributes["grid"] = [4, 9]
    return store


@pytest.mark.parametrize(
    ("aggregator", "options"),
    [("central", {}), ("k-means", {}), ("pca", {}), ("abmilp", {"position": "sin-cos"}), ("abmilp", {"position": "learned"})],
)
def test_is_refused(store, tmp_path, aggregator, options):
    plans = {"head": HeadPlan(HeadSpec(aggregator, options), RECIPE, (0,))}
    with pytest.raises(StoreError, match=rf"{aggregator} takes patches for a square grid, but .*set has 4 x 9; use a head"):
        probe(store, store, tmp_path / "out", plans)
    assert not (tmp_path / "out/head/metrics.json").exists()


def test_others_are_trained(store, tmp_path):
    """And this one on a grid that is square."""
    probe(store, store, tmp_path / "out", {"head": HeadPlan(HeadSpec(), RECIPE, (0,))})
    store.attributes["grid"] = [6, 6]
    probe(store, store, tmp_path / "out", {"square": HeadPlan(HeadSpec("central"), RECIPE, (0,))})
    assert (tmp_path / "out/head/metrics.json").exists()
