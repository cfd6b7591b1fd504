"""Heads without parameters in their aggregator train on vectors that were pooled once."""

import numpy as np
import pytest
import torch

from probe.aggregators import make_aggregator
from probe.grid import HeadSpec, Member
from probe.head import FinalNorm
from probe.passes import Passes
from probe.pooled import PooledImages, ToPool, fits, pool
from probe.recipe import Recipe
from probe.sources import Source
from store import Loader
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


@pytest.mark.parametrize("order", ["shared", "own"])
def test_the_trajectory_is_that_on_tokens(order, sources, monkeypatch):
    """Same order, same views, same measures; several shards, images that are not valid, a subset."""
    recipe = Recipe(epochs=4, batch_size=64, rows_at_once=32, warmup_epochs=1, order=order)
    rows = sources[0].rows[::2]
    runs = []
    for pooled in (True, False):
        monkeypatch.setattr("probe.passes.fits", lambda *_, pooled=pooled: pooled)
        said = []
        passes = Passes(HEADS, *sources, range(3), placement="memory", say=said.append)
        runs.append([*passes.train(MEMBERS, recipe), *passes.train(MEMBERS, recipe, rows, sources[0].rows[1::2])])
        assert any("features read once for cls, average, map: 663 vectors of each" in s for s in said) == pooled
        assert any("GB/s" in s for s in said) != pooled
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


def test_batches_are_those_of_a_loader(sources):
    source = sources[0]
    what = {"average": ToPool(make_aggregator("average", 8).eval())}
    vectors = pool(what, source, range(3), torch.device("cpu"))["average"].vectors
    rows = source.rows[10:150:3]
    images = PooledImages({"average": vectors}, source, 20, True, rows)
    arrays = {"patch": source.arrays("patch", range(3))}
    loader = Loader(arrays, source.store.labels, rows, 20, placement="memory")
    assert images.n_rows == loader.n_rows == len(rows)
    for seed in (0, 7):
        for start in (0, 1):
            batches = list(zip(images.epoch(seed, start), loader.epoch(seed, start), strict=True))
            assert len(batches) == 3 - start
            for ours, theirs in batches:
                assert torch.equal(ours["row"], theirs["row"])
                assert torch.equal(ours["label"], theirs["label"])
                torch.testing.assert_close(ours["average"], theirs["patch"].mean(1))


def test_pooling_by_hand(sources):
    source, norm = sources[0], FinalNorm.of(sources[0].store)
    what = {
        "plain": ToPool(make_aggregator("average", 8).eval()),
        "normed": ToPool(make_aggregator("cls-average", 8).eval(), norm),
        "map": ToPool(make_aggregator("cls-attention", 8).eval()),
    }
    pooled = pool(what, source, (0, 2), torch.device("cpu"), keep_weights=True)
    assert {name: tuple(p.vectors.shape) for name, p in pooled.items()} == {
        "plain": (2, 198, 8),
        "normed": (2, 198, 16),
        "map": (2, 198, 8),
    }
    for i, view in enumerate((0, 2)):
        patch, cls = (torch.from_numpy(source.store.tokens(k, view=view).rows(source.rows)).float() for k in ("patch", "cls"))
        torch.testing.assert_close(pooled["plain"].vectors[i], patch.mean(1))
        normed = norm({"patch": patch, "cls": cls})
        torch.testing.assert_close(pooled["normed"].vectors[i], torch.cat([normed["cls"], normed["patch"].mean(1)], 1))
    rows = source.store.array("attention/cls/block1/view0").rows(source.rows).astype(np.float32).mean(1)
    torch.testing.assert_close(pooled["map"].weights, torch.from_numpy(rows / rows.sum(1, keepdims=True)), rtol=1e-3, atol=1e-4)
    assert pooled["normed"].weights is None
    assert not pooled["plain"].vectors.is_inference()
    assert all(p.weights is None for p in pool(what, source, (0,), torch.device("cpu")).values())


def test_a_share_of_the_free_memory_is_enough_or_not(monkeypatch):
    what = {"a": ToPool(make_aggregator("cls", 8)), "b": ToPool(make_aggregator("cls-average", 8))}  # 8 + 16 numbers
    needed = 4 * 24 * 1000
    for free, fitting in ((4 * needed, True), (4 * needed - 4, False)):
        monkeypatch.setattr("probe.pooled.free_memory", lambda _, free=free: free)
        assert fits(what, 1000, torch.device("cpu")) == fitting
