"""Passes: which images and views members see, in which order, and what is kept when a run is killed."""

import shutil

import numpy as np
import pytest
import torch

import probe.passes
from probe.aggregators import AGGREGATORS, Aggregator, Pooled
from probe.grid import HeadSpec, Member
from probe.passes import Passes
from probe.recipe import Recipe
from probe.sources import Source
from store import ArrayLayout, FeatureSpec
from tests.features import write_arrays, write_features

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


def numbered(path, n, views, seed=0, shard_rows=32):
    """Features whose tokens say which image and view they are of: 10 · row + view."""
    arrays = {
        "images/id": (np.array([list(f"{i:04d}".encode()) for i in range(n)], np.uint8), ("image", "byte")),
        "images/label": (np.arange(n) % 2, ("image",)),
        "images/valid": (np.ones(n, np.uint8), ("image",)),
    }
    for view in range(views):
        values = np.broadcast_to((10.0 * np.arange(n) + view)[:, None, None], (n, 2, 4)).astype(np.float32)
        arrays[f"patch/block1/view{view}"] = (values, ("image", "patch", "channel"))
    layouts = [ArrayLayout(name, v.shape, v.dtype.name, dims, shard_rows) for name, (v, dims) in arrays.items()]
    spec = FeatureSpec("w", "{}", {"input_size": [3, 8, 8]}, f"d{seed}", n, (1,), n_views=views, dtype="float32")
    values = {name: v for name, (v, _) in arrays.items()}
    return write_arrays(path, spec, layouts, values, {"encoder": "e", "norm_eps": None, "classes": None, "problems": []})


def shown(passes, recipe, *rows):
    """(image, view) of each token that was shown, in epochs of training and of evaluation."""
    sizes = []
    original = probe.passes.train

    def watched(families, learn, judge, *arguments, **options):
        SEEN.clear()
        sizes.extend([learn.n_rows, 0 if judge is None else judge.n_rows])
        return original(families, learn, judge, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe.passes, "train", watched)
        passes.train([Member("watch", 0.1, 0.0, 0)], recipe, *rows)
    numbers = torch.cat([tokens[:, 0, 0] for tokens in SEEN]).numpy().round().astype(int)
    training, test = [], []
    at = 0
    for _ in range(recipe.epochs):
        training.append(numbers[at : at + sizes[0]])
        test.append(numbers[at + sizes[0] : at + sum(sizes)])
        at += sum(sizes)
    return training, [*test, numbers[at:]]


@pytest.mark.parametrize("placement", ["memory", "stream"])
def test_a_random_view_of_each_image_and_epoch_and_view_0_to_evaluate(placement, tmp_path):
    sources = Source(numbered(tmp_path / "a", 100, 3)), Source(numbered(tmp_path / "b", 40, 1, 1))
    passes = Passes({"watch": HeadSpec("watch")}, *sources, range(3), placement=placement)
    training, test = shown(passes, RECIPE)
    for epoch in training:
        assert sorted(epoch // 10) == list(range(100))  # each image once
        assert np.bincount(epoch % 10, minlength=3).min() > 15  # about a third each
    views = np.stack([epoch[np.argsort(epoch // 10)] % 10 for epoch in training])  # [epochs, images]
    assert (views.min(0) < views.max(0)).mean() > 0.9  # another one in another epoch
    assert len({tuple(epoch // 10) for epoch in training}) == len(training)  # another order, too
    assert len(test) == 7
    for epoch in test:
        assert epoch.tolist() == [10 * row for row in range(40)]  # view 0, in order


@pytest.mark.parametrize("views", [(0, 1, 2), (1, 2)], ids=str)
def test_held_out_images_are_judged_by_view_0_and_nothing_else_is_learnt_from(views, tmp_path):
    sources = Source(numbered(tmp_path / "a", 60, 3)), Source(numbered(tmp_path / "b", 40, 1, 1))
    rows = np.arange(60)
    training, test = shown(Passes({"watch": HeadSpec("watch")}, *sources, views), RECIPE, rows[:40], rows[40:])
    assert all(sorted(epoch // 10) == list(range(40)) for epoch in training)
    assert {view for epoch in training for view in epoch % 10} == set(views)
    assert [epoch.tolist() for epoch in test[:-1]] == [[]] * 6
    assert test[-1].tolist() == [10 * row for row in range(40, 60)]


def test_one_view_is_view_0(tmp_path):
    sources = Source(numbered(tmp_path / "a", 60, 3)), Source(numbered(tmp_path / "b", 40, 2, 1))
    training, test = shown(Passes({"watch": HeadSpec("watch")}, *sources), RECIPE)
    assert all((epoch % 10 == 0).all() for epoch in [*training, *test])


def test_pooled_vectors_are_of_all_views(tmp_path):
    sources = Source(numbered(tmp_path / "a", 60, 3)), Source(numbered(tmp_path / "b", 40, 2, 1))
    passes = Passes({"watch": HeadSpec("watch", {"parameters": False})}, *sources, range(3))
    training, test = passes.vectors("watch")
    expected = 10.0 * torch.arange(60) + torch.arange(3)[:, None]
    assert torch.equal(training.vectors[..., 0], expected)
    assert torch.equal(test.vectors[..., 0], 10.0 * torch.arange(40)[None])
    assert sum(len(tokens) for tokens in SEEN) == 3 * 60 + 40  # each was read once
    SEEN.clear()
    passes.train([Member("watch", 0.1, 0.0, seed) for seed in (0, 1)], RECIPE)
    assert SEEN == []


def test_pooled_vectors_train_and_judge_as_tokens_do(tmp_path, monkeypatch):
    """On crops alone, by which no image is judged; on all views: test_pooled.py."""
    sources = Source(write_features(tmp_path / "a", views=3)), Source(write_features(tmp_path / "b", seed=1))
    rows, outcomes = np.arange(96), []
    for fits in (True, False):
        monkeypatch.setattr("probe.passes.fits", lambda *_, fits=fits: fits)
        passes = Passes({"cls": HeadSpec("cls")}, *sources, (1, 2), placement="memory")
        for judged_by in (rows[60:], None):
            (outcome,) = passes.train([Member("cls", 0.1, 0.0, 0)], RECIPE, rows[:60], judged_by)
            outcomes.append(outcome)
    for ours, theirs in zip(outcomes[:2], outcomes[2:], strict=True):
        assert ours.result == pytest.approx(theirs.result)
        assert [entry["loss"] for entry in ours.curve] == pytest.approx([entry["loss"] for entry in theirs.curve], rel=1e-4)


class TestAPassThatWasKilled:
    @pytest.fixture
    def sources(self, tmp_path):
        return Source(write_features(tmp_path / "a", 128)), Source(write_features(tmp_path / "b", 64, seed=1))

    @pytest.fixture
    def passes(self, sources, tmp_path):
        def make(heads=("abmilp", "cls"), **options):
            return Passes({n: HeadSpec(n) for n in heads}, *sources, unfinished=tmp_path / "unfinished", **options)

        return make

    @staticmethod
    def killed(monkeypatch, epoch):
        """Stop after so many epochs."""
        original = probe.passes.Checkpoint.save

        def save(self, families, at, force=False):
            original(self, families, at, force=True)
            if at == epoch:
                raise KeyboardInterrupt

        monkeypatch.setattr(probe.passes.Checkpoint, "save", save)

    def test_goes_on_and_ends_with_the_same_bits(self, passes, monkeypatch):
        """Where each seed has its own order; with one for all: tests/pipelines/test_probe.py."""
        recipe = Recipe(epochs=5, batch_size=32, warmup_epochs=0, order="own")
        members = [Member(head, 0.3, 0.0, seed) for head in ("abmilp", "cls") for seed in (0, 1)]
        whole = {o.member: o for o in passes().train(members, recipe)}
        shutil.rmtree(passes().unfinished)
        with monkeypatch.context() as patch:
            self.killed(patch, 3)
            with pytest.raises(KeyboardInterrupt):
                passes().train(members, recipe)
        said, done = [], []
        again = passes(say=said.append, progress=done.append).train(members, recipe)
        assert "going on after 3 of 5 epochs" in said
        assert sum(done) == 5 * len(members)
        assert {o.member for o in again} == set(whole)
        for o in again:
            assert o.curve == whole[o.member].curve
            states = o.head.state_dict(), whole[o.member].head.state_dict()
            assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))

    def test_a_finished_pass_is_not_trained_again(self, passes):
        members, recipe, said = [Member("abmilp", 0.3, 0.0, 0)], Recipe(epochs=3, batch_size=32, warmup_epochs=0), []
        one = passes().train(members, recipe)
        other = passes(say=said.append).train(members, recipe)
        assert "going on after 3 of 3 epochs" in said
        assert not any("GB/s" in s for s in said)
        assert one[0].curve == other[0].curve
        assert torch.equal(one[0].weights, other[0].weights)
