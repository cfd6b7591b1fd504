"""Heads as scikit-learn classifiers: its own checks of estimators, its tools, and the same heads as `beyondcls.probe`."""

import sys
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from beyondcls import ProbeClassifier
from probe import run
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import PRESETS, Recipe
from probe.saved import load_probe
from store import BeyondClsError
from tests.features import write_features

probe = partial(run.probe, converged=False)  # converged classifiers: test_convergence.py
SHORT = {"epochs": 3, "warmup_epochs": 1, "batch_size": 32}


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Feature sets of training and test images, each of one shard."""
    folder = tmp_path_factory.mktemp("sets")
    return tuple(write_features(folder / f"{seed}", n, seed=seed, shard_rows=128) for seed, n in enumerate((96, 48)))


def tokens(store, kind):
    return store.tokens(kind).rows(np.arange(len(store)))


def test_scikit_learns_checks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each check that is skipped says so
        outcomes = check_estimator(ProbeClassifier(epochs=10, warmup_epochs=1), on_fail=None)
    by_status = {status: [o["check_name"] for o in outcomes if o["status"] == status] for status in ("failed", "skipped")}
    assert by_status["failed"] == []
    assert set(by_status["skipped"]) <= {"check_array_api_input"}, "which needs SCIPY_ARRAY_API=1"
    assert len(outcomes) > 50


@pytest.mark.parametrize(("kind", "aggregator", "options"), [("cls", None, {}), ("patch", "abmilp", {"branches": 2})])
def test_it_trains_the_head_that_probe_trains(kind, aggregator, options, features, tmp_path):
    train, test = features
    plan = HeadPlan(HeadSpec(aggregator or "cls", options), Recipe(**SHORT, order="own"), seeds=(3,))
    probe(train, test, tmp_path / "out", plan)
    trained = load_probe(tmp_path / "out/trained/seed3")
    model = ProbeClassifier(aggregator, options=options, **SHORT, random_state=3).fit(tokens(train, kind), train.labels)
    for (name, expected), value in zip(trained.state_dict().items(), model.head_.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5, msg=name)
    x = tokens(test, kind)
    logits = model.decision_function(x)
    np.testing.assert_allclose(logits, trained({kind: torch.from_numpy(x).float()})[0].detach(), rtol=1e-3, atol=1e-4)
    assert [entry["epoch"] for entry in model.curve_] == [1, 2, 3]
    if kind == "cls":  # the score of a vector does not depend on the others
        alone = np.concatenate([model.decision_function(x[[row]]) for row in range(len(x))])
        np.testing.assert_allclose(logits, alone, rtol=1e-12, atol=1e-14)


def test_a_preset_is_what_settings_change(features):
    train, _ = features
    assert ProbeClassifier(preset="adamw")._recipe() == Recipe(**PRESETS["adamw"])
    assert ProbeClassifier(preset="adamw", base_lr=0.5)._recipe() == Recipe(**{**PRESETS["adamw"], "base_lr": 0.5})
    starts = [ProbeClassifier(preset=preset, **SHORT, base_lr=1e-9) for preset in ("small-sgd", None)]
    spread = [model.fit(tokens(train, "cls"), train.labels).head_.classifier.weight.std() for model in starts]
    assert spread[0] > 10 * spread[1], "the classifier starts as the preset says"


def test_random_states(features):
    def weights(state):
        model = ProbeClassifier(epochs=1, warmup_epochs=0, random_state=state)
        return model.fit(tokens(features[0], "cls"), features[0].labels).head_.classifier.weight

    assert not torch.equal(weights(0), weights(1))
    assert not torch.equal(weights(None), weights(None))
    assert torch.equal(weights(np.random.RandomState(5)), weights(np.random.RandomState(5)))


X, Y = np.random.default_rng(0).normal(size=(12, 4)), np.arange(12) % 3
REFUSED = [
    ({}, X, Y * 0, "all 12 images are of class .*0.*, expected 2"),
    ({"aggregator": "abmilp"}, X, Y, r"X is \[12, 4\], but .* 'abmilp' reads patch"),
    ({}, X[:, None, None], Y, r"X is \[12, 1, 1, 4\], expected vectors \[n, D\] or tokens"),
    ({"aggregator": "abmlip"}, X[:, None], Y, "did you mean 'abmilp'"),
    ({"epochs": 0}, X, Y, "epochs is 0, expected 1"),
    ({"base_lr": 1e30, "epochs": 2, "warmup_epochs": 0, "normalisation": "none"}, 1e18 * X, Y, "diverged in epoch"),
]


@pytest.mark.parametrize(("settings", "x", "y", "message"), REFUSED, ids=[refused[3][:30] for refused in REFUSED])
def test_what_cannot_be(settings, x, y, message):
    with pytest.raises(BeyondClsError, match=message):
        ProbeClassifier(**settings).fit(x, y)


def test_other_shapes_than_it_was_fitted_to():
    with pytest.raises(NotFittedError):
        ProbeClassifier().predict(X)
    model = ProbeClassifier(**SHORT).fit(X[:, None], Y)
    with pytest.raises(BeyondClsError, match=r"X is \[12, 1, 3\], expected \[n, 1, 4\]"):
        model.predict(X[:, None, :3])


def test_without_scikit_learn(monkeypatch):
    monkeypatch.delitem(sys.modules, "probe.estimator")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(BeyondClsError, match=r"scikit-learn .* pip install 'beyondcls\[probe\]'"):
        __import__("probe.estimator")
