"""Heads without parameters in their aggregator train on vectors that were pooled once."""

import pytest
import torch

from probe.aggregators import make_aggregator
from probe.grid import HeadSpec, Member
from probe.passes import Passes
from probe.pooled import ToPool, vectors_fit
from probe.recipe import Recipe
from probe.sources import Source
from tests.features import write_features

HEADS = {
    "cls": HeadSpec("cls"),
    "average": HeadSpec("average", final_norm=True),
    "map": HeadSpec("cls-attention", {"top_k": 3}, normalisation="none"),
}
MEMBERS = [Member(name, lr, 0.0, seed) for name in HEADS for lr in (0.1, 1.0) for seed in (0, 1)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    train = write_features(folder / "train", 200, views=3, norm=True, invalid=(3, 77))
    return Source(train), Source(write_features(folder / "test", 70, seed=1, norm=True, invalid=(5,)))


@pytest.mark.parametrize(("order", "views"), [("shared", range(3)), ("own", range(3)), ("shared", (1, 2))], ids=str)
def test_the_trajectory_is_that_on_tokens(order, views, sources, monkeypatch):
    """Same order, same views, same measures; several shards, images that are not valid, a subset; crops alone."""
    recipe = Recipe(epochs=4, batch_size=64, rows_at_once=32, warmup_epochs=1, order=order)
    rows = sources[0].rows[::2]
    runs = []
    for pooled in (True, False):
        monkeypatch.setattr("probe.passes.vectors_fit", lambda *_, pooled=pooled: pooled)
        messages = []
        passes = Passes(HEADS, *sources, views, placement="memory", say=messages.append)
        runs.append([*passes.train(MEMBERS, recipe), *passes.train(MEMBERS, recipe, rows, sources[0].rows[1::2])])
        vectors = f"features read once for cls, average, map: {len(views) * 198 + 69} vectors of each"
        assert any(vectors in s for s in messages) == pooled
        assert any("GB/s" in s for s in messages) != pooled
    assert len(runs[0]) == 2 * len(MEMBERS)
    by_member = [{(i // len(MEMBERS), o.member): o for i, o in enumerate(run)} for run in runs]
    for key, one in by_member[0].items():
        other = by_member[1][key]
        assert [e["loss"] for e in one.curve] == pytest.approx([e["loss"] for e in other.curve], rel=1e-4)
        assert len(one.curve) == 4
        if key[0] == 0:
            assert one.result == pytest.approx(other.result, abs=1e-3)
            assert [e.keys() for e in one.curve] == [e.keys() for e in other.curve]
        else:  # judged by other images: weights are not asked for
            assert one.result["top1"] == pytest.approx(other.result["top1"], abs=1e-3)
        for (name, a), b in zip(one.head.state_dict().items(), other.head.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)
        assert (one.weights is None) == (other.weights is None)
        if one.weights is not None:
            torch.testing.assert_close(one.weights, other.weights)


def test_a_share_of_the_free_memory_is_enough_or_not(monkeypatch):
    what = {"a": ToPool(make_aggregator("cls", 8)), "b": ToPool(make_aggregator("cls-average", 8))}  # 8 + 16 numbers
    needed = 4 * 24 * 1000
    for free, fitting in ((4 * needed, True), (4 * needed - 4, False)):
        monkeypatch.setattr("probe.pooled.free_memory", lambda _, free=free: free)
        assert vectors_fit(what, 1000, torch.device("cpu")) == fitting
