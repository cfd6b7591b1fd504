"""Passes: which images and views members see, in which order, pooled once or not, and what is kept when a run is killed."""

import numpy as np
import pytest
import torch

import probe.passes
from probe.aggregators import AGGREGATORS, Aggregator, Pooled, make_aggregator
from probe.grid import HeadSpec, Member
from probe.head import Head
from probe.passes import HeadPasses
from probe.pooled import vectors_fit
from probe.recipe import Recipe
from probe.sources import Source
from store import ArrayLayout, FeatureSpec
from store.codecs import CODECS
from store.codecs.codec import Coded
from tests.features import write_arrays, write_features
from tests.probe.training import equal

RECIPE = Recipe(epochs=6, batch_size=16, warmup_epochs=0)
SEEN: list[torch.Tensor] = []


class Watch(Aggregator):
    """Takes note of the tokens that it is shown."""

    reads = ("patch",)

    def __init__(self, dim, parameters=True):
        super().__init__(dim)
        if parameters:
            self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, features) -> Pooled:
        SEEN.append(features["patch"].detach().clone())
        mean = features["patch"].mean(1)
        return Pooled(mean * self.scale if self.trainable else mean, None)

    def pool_members(self, parameters, features) -> Pooled:
        SEEN.append(features["patch"].detach().clone())
        return Pooled(features["patch"].mean(1) * parameters["scale"][..., None], None)


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    monkeypatch.setitem(AGGREGATORS, "watch", Watch)
    SEEN.clear()


def write(path, n, values, dtype="float32", seed=0):
    """A feature set of these arrays of tokens, by name."""
    images = {
        "images/id": np.array([list(f"{i:04d}".encode()) for i in range(n)], np.uint8),
        "images/label": np.arange(n) % 2,
        "images/valid": np.ones(n, np.uint8),
    }
    axes = dict.fromkeys(values, ("image", "patch", "channel")) | dict.fromkeys(images, ("image", "byte"))
    layouts = [
        ArrayLayout(name, v.shape, v.dtype.name, axes[name][: v.ndim], 32, codec=dtype if v.dtype == np.int8 else None)
        for name, v in (values | images).items()
    ]
    n_views = len({name for name in values if "/view" in name and "scale" not in name})
    spec = FeatureSpec("w", "{}", {"input_size": [3, 8, 8]}, f"d{seed}", n, (1,), n_views=n_views, dtype=dtype)
    described = {"encoder": "e", "norm_eps": None, "classes": None, "problems": []}
    return Source(write_arrays(path, spec, layouts, values | images, described))


def numbered(path, n, views, seed=0):
    """Features whose tokens say which image and view they are of: 10 · row + view."""
    tokens = (
        np.broadcast_to((10.0 * np.arange(n) + view)[:, None, None], (n, 2, 4)).astype(np.float32) for view in range(views)
    )
    return write(path, n, {f"patch/block1/view{view}": values for view, values in enumerate(tokens)}, seed=seed)


def shown(passes, recipe, *rows):
    """(image, view) of each token that was shown, in epochs of training and of evaluation."""
    sizes = []
    original = probe.passes.go_on

    def watched(families, learn, judge, *arguments, **options):
        SEEN.clear()
        sizes.extend([learn.n_rows, 0 if judge is None else judge.n_rows])
        return original(families, learn, judge, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe.passes, "go_on", watched)
        passes.train([Member("watch", 0.1, 0.0, 0)], recipe, *rows)
    numbers = torch.cat([tokens[:, 0, 0] for tokens in SEEN]).numpy().round().astype(int)
    parts = np.split(numbers, np.cumsum(sizes * recipe.epochs))
    return parts[:-1:2], [*parts[1:-1:2], parts[-1]]


@pytest.mark.parametrize("placement", ["memory", "stream"])
def test_a_random_view_of_each_image_and_epoch_and_view_0_to_evaluate(placement, tmp_path):
    sources = numbered(tmp_path / "a", 100, 3), numbered(tmp_path / "b", 40, 1, 1)
    passes = HeadPasses({"watch": HeadSpec("watch")}, *sources, range(3), placement=placement)
    training, test = shown(passes, RECIPE)
    for epoch in training:
        assert sorted(epoch // 10) == list(range(100))  # each image once
        assert np.bincount(epoch % 10, minlength=3).min() > 15  # about a third each
    views = np.stack([epoch[np.argsort(epoch // 10)] % 10 for epoch in training])  # [epochs, images]
    assert (views.min(0) < views.max(0)).mean() > 0.9  # another one in another epoch
    assert len({tuple(epoch // 10) for epoch in training}) == len(training) == 6  # another order, too
    assert [epoch.tolist() for epoch in test] == [[10 * row for row in range(40)]] * 7  # view 0, in order


@pytest.mark.parametrize("views", [(0, 1, 2), (1, 2)], ids=str)
def test_held_out_images_are_judged_by_view_0_and_nothing_else_is_learnt_from(views, tmp_path):
    sources, rows = (numbered(tmp_path / "a", 60, 3), numbered(tmp_path / "b", 40, 1, 1)), np.arange(60)
    training, test = shown(HeadPasses({"watch": HeadSpec("watch")}, *sources, views), RECIPE, rows[:40], rows[40:])
    assert all(sorted(epoch // 10) == list(range(40)) for epoch in training)
    assert {view for epoch in training for view in epoch % 10} == set(views)
    assert [epoch.tolist() for epoch in test] == [*[[]] * 6, [10 * row for row in range(40, 60)]]


def test_pooled_vectors_are_of_all_views(tmp_path):
    sources = numbered(tmp_path / "a", 60, 3), numbered(tmp_path / "b", 40, 2, 1)
    passes = HeadPasses({"watch": HeadSpec("watch", {"parameters": False})}, *sources, range(3))
    training, test = passes.vectors("watch")
    assert torch.equal(training.vectors[..., 0], 10.0 * torch.arange(60) + torch.arange(3)[:, None])
    assert torch.equal(test.vectors[..., 0], 10.0 * torch.arange(40)[None])
    assert sum(len(tokens) for tokens in SEEN) == 3 * 60 + 40  # each was read once
    SEEN.clear()
    passes.train([Member("watch", 0.1, 0.0, seed) for seed in (0, 1)], RECIPE)
    assert SEEN == []


def test_tokens_that_only_pooling_reads_stay_as_they_are_stored(tmp_path, monkeypatch):
    """And give the heads that decoded ones give, bit for bit; a head that reads them otherwise has all decoded."""
    sources = []
    for seed in range(2):
        tokens = torch.randn(40, 2, 4, generator=torch.Generator().manual_seed(seed))
        parts = {f"patch/block1/view0{suffix}": part.numpy() for suffix, part in CODECS["int8"].encode(tokens).items()}
        sources.append(write(tmp_path / str(seed), 40, parts, "int8", seed))
    heads = {"abmilp": HeadSpec("abmilp"), "deep": HeadSpec("abmilp", {"depth": 2}), "watch": HeadSpec("watch")}
    kinds, trained, original = [], [], probe.passes.go_on

    def watched(families, learn, *arguments, **options):
        kinds.append(type(next(iter(learn.epoch()))["patch"]))
        return original(families, learn, *arguments, **options)

    monkeypatch.setattr(probe.passes, "go_on", watched)
    for reads_stored in (True, False):
        monkeypatch.setattr(probe.passes, "reads_stored", lambda device, answer=reads_stored: answer)
        for name in heads:
            passes = HeadPasses({name: heads[name]}, *sources)
            trained.append(passes.train([Member(name, 0.1, 0.0, 0)], RECIPE)[0])
    assert kinds == [Coded, *[torch.Tensor] * 5]
    for one, other in zip(trained[:3], trained[3:], strict=True):
        equal(one.head, other.head)
        assert one.result == other.result


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


@pytest.mark.parametrize(("order", "views"), [("own", range(3)), ("shared", (1, 2))], ids=str)
def test_the_trajectory_is_that_on_tokens(order, views, sources, monkeypatch):
    """Same order, same views, same measures; several shards, images that are not valid, a subset; crops alone."""
    recipe = Recipe(epochs=4, batch_size=64, rows_at_once=32, warmup_epochs=1, order=order)
    rows, runs = sources[0].rows[::2], []
    for pooled in (True, False):
        monkeypatch.setattr("probe.passes.vectors_fit", lambda *_, pooled=pooled: pooled)
        messages = []
        passes = HeadPasses(HEADS, *sources, views, placement="memory", say=messages.append)
        runs.append([*passes.train(MEMBERS, recipe), *passes.train(MEMBERS, recipe, rows, sources[0].rows[1::2])])
        vectors = f"features read once for cls, average, map: {len(views) * 198 + 69} vectors of each"
        assert any(vectors in s for s in messages) == pooled
        assert any("GB/s" in s for s in messages) != pooled
    assert len(runs[0]) == 2 * len(MEMBERS)
    by_member = [{(i // len(MEMBERS), o.member): o for i, o in enumerate(run)} for run in runs]
    for (part, member), one in by_member[0].items():
        other = by_member[1][part, member]
        assert [e["loss"] for e in one.curve] == pytest.approx([e["loss"] for e in other.curve], rel=1e-4)
        assert len(one.curve) == 4
        measures = one.result if part == 0 else ["top1"]  # judged by other images: weights are not asked for
        assert {m: one.result[m] for m in measures} == pytest.approx({m: other.result[m] for m in measures}, abs=1e-3)
        if part == 0:
            assert [e.keys() for e in one.curve] == [e.keys() for e in other.curve]
        for (name, a), b in zip(one.head.state_dict().items(), other.head.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)
        torch.testing.assert_close(one.weights, other.weights)


def test_a_share_of_the_free_memory_is_enough_or_not(monkeypatch):
    what = {name: Head(make_aggregator(name, 8), 2) for name in ("cls", "cls-average")}  # 8 + 16 numbers
    for free, fitting in ((4 * 4 * 24 * 1000, True), (4 * 4 * 24 * 1000 - 4, False)):
        monkeypatch.setattr("probe.pooled.free_memory", lambda _, free=free: free)
        assert vectors_fit(what, 1000, torch.device("cpu")) == fitting
