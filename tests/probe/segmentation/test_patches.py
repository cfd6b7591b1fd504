"""Blocks of patches, and what is computed from them: the same from memory and streamed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from probe.head import FinalNorm
from probe.segmentation.logistic import Logistic
from probe.segmentation.neighbours import Neighbours
from probe.segmentation.sets import Sets
from store import BeyondClsError
from store.loading import loader as loader_module
from tests.probe.segmentation.features import write_segmented


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
    protocol = Neighbours((1, 7, 30), (metric,), standardise)
    predicted = protocol.predict(sets.learnt, sets.tested, protocol.grid)
    for k in protocol.ks:
        theirs = KNeighborsClassifier(k, metric=metric, algorithm="brute").fit(x[y >= 0], y[y >= 0]).predict(queries)
        np.testing.assert_array_equal(predicted[metric, k].ravel(), theirs)


def test_search_over_many_blocks_finds_the_same(sets, monkeypatch):
    """All neighbours are in the blocks that come last, or equally near."""
    protocol = Neighbours(ks=(3, 30))
    whole = protocol.predict(sets.learnt, sets.tested, protocol.grid)
    for size, value in (("REFERENCES", 64), ("QUERIES", 16), ("QUERIES_AT_ONCE", 100)):
        monkeypatch.setattr(f"probe.segmentation.neighbours.{size}", value)
    parts = protocol.predict(sets.learnt, sets.tested, protocol.grid)
    for setting, labels in whole.items():
        np.testing.assert_array_equal(parts[setting], labels)


@pytest.mark.parametrize("standardise", [True, False])
def test_logistic_regression_as_scikit_learn(sets, standardise):
    """With a channel that is ten times as wide, so that the penalty knows the scale."""
    x, y = arrays(sets.learnt, sets.learnt if standardise else None)
    x, y = torch.from_numpy(x[y >= 0]).double(), torch.from_numpy(y[y >= 0]).long()
    x = x - x.mean(0)
    protocol = Logistic((1e-4, 0.03, 10.0, 1e5), standardise)
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
    small = replace(sets.learnt, buffer_nbytes=3 * 16 * 16 * 6 * 2)
    streamed, resident = (
        Logistic().fit(patches, (0.1, 10.0), in_memory=in_memory)[0]
        for patches, in_memory in ((small, False), (sets.learnt.placed("memory"), True))
    )
    assert small.loader.placement == "stream"
    for c, head in streamed.items():
        assert torch.equal(head.weight, resident[c].weight)
        assert torch.equal(head.bias, resident[c].bias)
    protocol = Neighbours()
    found = [protocol.predict(p, sets.tested, protocol.grid) for p in (small, sets.learnt.placed("memory"))]
    for setting in protocol.grid:
        np.testing.assert_array_equal(found[0][setting], found[1][setting])


def test_too_few_classes_are_refused(tmp_path):
    one = write_segmented(tmp_path / "one", 4, labelled=1)
    with pytest.raises(BeyondClsError, match="have 1 classes, expected 2 or more"):
        Logistic().fit(Sets(one, one).learnt, (1.0,))


def test_a_class_without_patches_is_never_predicted(sets):
    """The others are told apart as if it were not there, and the head applies the norm itself."""
    labels = np.where(sets.learnt.labels == 1, -1, sets.learnt.labels)
    norm = FinalNorm(torch.linspace(0.5, 2, 6), torch.ones(6), 1e-6)
    patches = replace(sets.learnt, labels=labels, final_norm=norm)
    heads, _ = Logistic().fit(patches, (1.0,))
    tokens = torch.from_numpy(patches.source.store.tokens("patch").rows(patches.rows)).float()
    logits, normed = heads[1.0]({"patch": tokens}), norm({"patch": tokens})["patch"]
    assert torch.equal(logits, heads[1.0].of_tokens(normed))
    labelled = labels.ravel() >= 0
    x, y = normed.flatten(0, 1).double().numpy()[labelled], labels.ravel()[labelled]
    x = (x - x.mean(0)) / x.std(0)
    theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=10000).fit(x, y).predict(x)
    np.testing.assert_array_equal(logits.argmax(1).flatten()[torch.from_numpy(labelled)], theirs)
    assert logits.softmax(1)[:, 1].max() == 0


def test_what_did_not_converge_is_noted(sets):
    _, notes = Logistic(max_passes=3).fit(sets.learnt, (0.5, 1e5))
    assert notes == [
        f"logistic regression with C = {c} did not converge in 3 passes; give more (--max-passes)" for c in ("0.5", "100000")
    ]


def test_settings_are_tried_from_the_simplest_on():
    """So that of equally good ones it is taken: fewer neighbours, a heavier penalty."""
    assert Neighbours((30, 1), ("cosine",)).grid == [("cosine", 1), ("cosine", 30)]
    assert Logistic((10.0, 0.1)).cs == (0.1, 10.0)
    with pytest.raises(BeyondClsError, match="unknown metric 'cosin'; did you mean 'cosine'"):
        Neighbours(metrics=("cosin",))
    with pytest.raises(BeyondClsError, match="max_passes is 1, expected 2 or more"):
        Logistic(max_passes=1)
