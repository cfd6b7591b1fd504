"""Patches of sets that belong together, in blocks, and what is computed from them: the same from memory and streamed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from probe.head import FinalNorm
from probe.segmentation.logistic import PatchLogistic
from probe.segmentation.neighbours import PatchNeighbours, nearest_rows
from probe.segmentation.sets import Sets
from store import BeyondClsError, StoreError
from store.loading import loader as loader_module
from tests.probe.segmentation.features import write_segmented


def test_all_sets_are_read_at_the_same_block(tmp_path):
    """That of the training set, though another may have deeper ones."""
    shallow, deep = write_segmented(tmp_path / "a", 4, blocks=(0,)), write_segmented(tmp_path / "b", 4, blocks=(0, 1))
    sets = Sets(shallow, deep, deep)
    assert {p.source.probed_block for p in (sets.learnt, sets.tested, *sets.compared)} == {0}
    with pytest.raises(StoreError, match=r"a has no array 'patch/block1/view0'; it has: patch/block0/view0"):
        Sets(deep, deep, shallow)


def test_images_that_could_not_be_read_are_left_out(tmp_path):
    some, none = write_segmented(tmp_path / "a", 6, invalid=(1, 4)), write_segmented(tmp_path / "b", 2, invalid=(0, 1))
    sets = Sets(some, none, share=0.5)
    assert sets.learnt.rows.tolist() == sorted(np.concatenate(sets.split).tolist()) == [0, 2, 3, 5]
    assert [len(rows) for rows in sets.split] == [2, 2], "the share that is held out"
    with pytest.raises(StoreError, match=r"b has no image that could be read"):
        _ = sets.tested


def test_images_that_are_void_everywhere(tmp_path):
    """Nothing is learnt from them, and no setting is said to have diverged on them."""
    store, void = write_segmented(tmp_path / "a", 4), write_segmented(tmp_path / "b", 4, labelled=1)
    with pytest.raises(BeyondClsError, match="have 1 classes, expected 2 or more"):
        PatchLogistic().fit(Sets(void, void).learnt, (1.0,))
    void.segmentation.patch_labels = lambda view=0: np.full((4, 16), -1, np.int16)
    with pytest.raises(StoreError, match=r"b: no patch of the 4 images has a label to learn from; give images"):
        _ = Sets(void, store).learnt
    with pytest.raises(StoreError, match=r"b: no patch of the 4 images has a label to select on; give another --val"):
        _ = Sets(store, store, void).compared
    learn, held_out = Sets(store, store, share=0.25).split
    labels = store.segmentation.patch_labels()
    for rows, message in ((held_out, "the 1 image .* to select on; .*--held-out, .*--val"), (learn, "the 3 images .* beside")):
        changed = labels.copy()
        changed[rows] = -1
        store.segmentation.patch_labels = lambda view=0, changed=changed: changed
        with pytest.raises(StoreError, match=message):
            _ = Sets(store, store, share=0.25).compared


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return Sets(write_segmented(folder / "train", 40, noise=0.3, shard_rows=32), write_segmented(folder / "test", 9, seed=1))


def arrays(patches, scaled_by=None):
    """Labelled patches as arrays, standardised by those of another set."""
    tokens = patches.source.store.tokens("patch").rows(patches.rows).astype(np.float32).reshape(-1, patches.dim)
    labels = patches.labels[patches.rows].ravel()
    if scaled_by is not None:
        theirs, their_labels = arrays(scaled_by)
        tokens = (tokens - theirs[their_labels >= 0].mean(0)) / theirs[their_labels >= 0].std(0)
    return tokens, labels


def test_blocks_leave_out_void(sets):
    tokens, labels = arrays(sets.learnt)
    blocks = [(x.clone(), y.clone()) for x, y in sets.learnt.blocks(50)]
    assert [len(x) for x, _ in blocks] == [50] * 12 + [32]
    np.testing.assert_array_equal(torch.cat([x for x, _ in blocks]), tokens[labels >= 0])
    np.testing.assert_array_equal(torch.cat([y for _, y in blocks]), labels[labels >= 0])
    assert sum(len(x) for x, _ in sets.learnt.blocks(50, labelled=False)) == 640


@pytest.mark.parametrize(("metric", "standardise"), [("cosine", True), ("euclidean", True), ("euclidean", False)])
def test_neighbours_as_scikit_learn(sets, metric, standardise):
    scaled_by = sets.learnt if standardise else None
    x, y = arrays(sets.learnt, scaled_by)
    queries, _ = arrays(sets.tested, scaled_by)
    protocol = PatchNeighbours((1, 7, 30), (metric,), standardise)
    predicted = protocol.predict(sets.learnt, sets.tested, protocol.grid)
    for k in protocol.ks:
        theirs = KNeighborsClassifier(k, metric=metric, algorithm="brute").fit(x[y >= 0], y[y >= 0]).predict(queries)
        np.testing.assert_array_equal(predicted[metric, k].ravel(), theirs)


@pytest.mark.parametrize("standardise", [True, False])
def test_logistic_regression_as_scikit_learn(sets, standardise):
    """With a channel that is ten times as wide, so that the penalty knows the scale."""
    x, y = arrays(sets.learnt, sets.learnt if standardise else None)
    x, y = torch.from_numpy(x[y >= 0]).double(), torch.from_numpy(y[y >= 0]).long()
    x = x - x.mean(0)
    protocol = PatchLogistic((1e-4, 0.03, 10.0, 1e5), standardise)
    heads, notes = protocol.fit(sets.learnt, protocol.cs)
    assert not notes
    tokens = torch.from_numpy(sets.learnt.source.store.tokens("patch").rows(sets.learnt.rows)).float()
    for c, head in heads.items():
        theirs = LogisticRegression(C=c, tol=1e-10, max_iter=10000).fit(x, y)
        weight, bias = torch.from_numpy(theirs.coef_), torch.from_numpy(theirs.intercept_)
        losses = [
            c * F.cross_entropy(x @ w.double().T + b.double(), y, reduction="sum") + w.double().square().sum() / 2
            for w, b in ((head.weight, head.bias), (weight, bias))
        ]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
        labels = head.of_tokens(tokens).argmax(1).flatten()[torch.from_numpy(sets.learnt.labels.ravel() >= 0)]
        np.testing.assert_array_equal(labels, theirs.predict(x))


def test_streamed_equals_resident(sets, monkeypatch):
    """Bit by bit, with memory for a few images."""
    monkeypatch.setattr(loader_module, "BUFFER_BLOCKS", 1)
    small, whole = replace(sets.learnt, buffer_nbytes=3 * 16 * 16 * 6 * 2), sets.learnt.placed("memory")
    resident, _ = PatchLogistic().fit(whole, (0.1, 10.0))
    with monkeypatch.context() as patch:
        patch.setattr("probe.segmentation.logistic.MEMORY_SHARE", 0)
        streamed, _ = PatchLogistic().fit(small, (0.1, 10.0))
    assert small.loader.placement == "stream"
    for c, head in streamed.items():
        assert all(torch.equal(values, resident[c].state_dict()[name]) for name, values in head.state_dict().items())
    protocol = PatchNeighbours()
    found = [protocol.predict(p, sets.tested, protocol.grid) for p in (small, whole)]
    for setting in protocol.grid:
        np.testing.assert_array_equal(found[0][setting], found[1][setting])


def test_a_class_without_patches_is_never_predicted(sets):
    """The others are told apart as if it were not there, and the head applies the norm itself."""
    labels = np.where(sets.learnt.labels == 1, -1, sets.learnt.labels)
    norm = FinalNorm(torch.linspace(0.5, 2, 6), torch.ones(6), 1e-6)
    patches = replace(sets.learnt, labels=labels, final_norm=norm)
    heads, _ = PatchLogistic().fit(patches, (1.0,))
    tokens = torch.from_numpy(patches.source.store.tokens("patch").rows(patches.rows)).float()
    logits, normed = heads[1.0]({"patch": tokens}), norm({"patch": tokens})["patch"]
    assert torch.equal(logits, heads[1.0].of_tokens(normed))
    labelled = labels.ravel() >= 0
    x, y = normed.flatten(0, 1).double().numpy()[labelled], labels.ravel()[labelled]
    x = (x - x.mean(0)) / x.std(0)
    theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=10000).fit(x, y).predict(x)
    np.testing.assert_array_equal(logits.argmax(1).flatten()[torch.from_numpy(labelled)], theirs)
    assert logits.softmax(1)[:, 1].max() == 0


def test_settings_are_tried_from_the_simplest_on():
    """So that of equally good ones it is taken: fewer neighbours, a heavier penalty."""
    assert PatchNeighbours((30, 1), ("cosine",)).grid == [("cosine", 1), ("cosine", 30)]
    assert PatchLogistic((10.0, 0.1)).cs == (0.1, 10.0)
    with pytest.raises(BeyondClsError, match="unknown metric 'cosin'; did you mean 'cosine'"):
        PatchNeighbours(metrics=("cosin",))
    with pytest.raises(BeyondClsError, match="max_passes is 1, expected 2 or more"):
        PatchLogistic(max_passes=1)


@pytest.mark.parametrize(("threads", "size"), [(1, 64), (2, 512)])
def test_as_a_full_comparison(threads, size):
    torch.manual_seed(0)
    before = torch.get_num_threads()
    references, queries = torch.randn(3001, 8), torch.randn(700, 8)
    references[2000:2500] = references[:500]  # equally near: the lower row comes first
    references[100] = 0  # has no direction
    try:
        torch.set_num_threads(threads)
        found = nearest_rows(queries, references.split(size), 5, ("euclidean", "cosine"))
    finally:
        torch.set_num_threads(before)
    cosine = torch.nn.functional.normalize(queries.double()) @ torch.nn.functional.normalize(references.double()).T
    for metric, similarity in (("euclidean", -torch.cdist(queries.double(), references.double())), ("cosine", cosine)):
        similarity[:, 2000:2500] -= 1e-12
        pairs = torch.isin(found[metric][:, 1:] - found[metric][:, :-1], torch.tensor(2000))
        assert pairs.any(), metric
        assert torch.equal(found[metric][:, :4], similarity.topk(4).indices), metric
