"""A converged classifier beside each trained head."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from probe.closed import Logistic, Vectors
from probe.grid import HeadPlan, HeadSpec
from probe.head import Head
from probe.metrics import top_k_hits
from probe.recipe import Recipe
from probe.run import probe
from probe.saved import load_probe
from tests.features import write_features

RECIPE = Recipe(epochs=12, batch_size=32, warmup_epochs=0)
HEADS = ("cls", "average", "abmilp")


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return tuple(write_features(folder / s, n, seed=i, signal=0.4) for i, (s, n) in enumerate((("train", 240), ("test", 90))))


def vectors(store, head: Head) -> Vectors:
    tokens = {kind: torch.from_numpy(np.asarray(store.tokens(kind).all())).float() for kind in head.aggregator.reads}
    with torch.no_grad():
        return Vectors(head.aggregator(tokens)[0], np.array(store.labels), store.n_classes)


@pytest.mark.parametrize("name", HEADS)
def test_it_is_logistic_regression_of_the_vectors_of_each_seed(name, sets, tmp_path):
    written = probe(*sets, tmp_path / name, HeadPlan(HeadSpec(name), RECIPE, seeds=(0, 1)))[name]
    with np.load(tmp_path / name / "trained/correct.npz") as file:
        correct, converged = file["correct"], file["converged"]
    for seed in (0, 1):
        sides = [vectors(store, load_probe(tmp_path / name / f"trained/seed{seed}")) for store in sets]
        right = top_k_hits(Logistic().fit(*sides).scores, sides[1].labels).numpy()
        assert (converged[seed] == right).mean() > 0.98  # products in another order
        difference = converged[seed].astype(float) - correct[seed]
        short = difference.mean() / (difference.std(ddof=1) / np.sqrt(90)) if difference.any() else 0.0
        assert written["short_of_converged"]["values"][seed] == pytest.approx(short)
        assert written["converged_top1"]["values"][seed] == pytest.approx(100 * converged[seed].mean())
    described = json.loads((tmp_path / name / "description.json").read_text())
    assert described["converged_top1"] == written["converged_top1"]


def test_a_head_that_is_not_trained_out_says_so(tmp_path):
    sets = [write_features(tmp_path / split, n, seed=i) for i, (split, n) in enumerate((("train", 240), ("test", 90)))]
    plans = {
        rate: HeadPlan(HeadSpec("average"), replace(RECIPE, base_lr=rate, epochs=epochs), seeds=(0,))
        for rate, epochs in ((1e-5, 1), (0.3, 60))
    }
    notes = {rate: probe(*sets, tmp_path / str(rate), plan)[str(rate)]["notes"] for rate, plan in plans.items()}
    says = {rate: any(note.startswith("not trained out") for note in of_head) for rate, of_head in notes.items()}
    assert says == {1e-5: True, 0.3: False}


def test_a_head_that_saw_crops_is_not_said_to_be_undertrained(tmp_path):
    """The converged classifier is one of the evaluation crops, which the head never saw."""
    sets = [write_features(tmp_path / s, n, seed=i, views=3 - 2 * i) for i, (s, n) in enumerate((("train", 240), ("test", 90)))]
    plan = HeadPlan(HeadSpec("average"), replace(RECIPE, base_lr=1e-5, epochs=1), seeds=(0,))
    for shown, start in (({}, "top1 "), ({"views": 1}, "not trained out")):
        notes = probe(*sets, tmp_path / start.strip(), plan, **shown)[start.strip()]["notes"]
        assert next(note for note in notes if "converged classifier" in note).startswith(start)


def test_weights_on_one_patch_are_said_to_have_collapsed(sets, tmp_path):
    plans = {rate: HeadPlan(HeadSpec("abmilp"), replace(RECIPE, base_lr=rate), seeds=(0,)) for rate in (1e-3, 30.0)}
    for rate, plan in plans.items():
        written = probe(*sets, tmp_path / str(rate), plan)[str(rate)]
        assert (written["entropy"]["mean"] < np.log(2)) == (rate == 30.0)
        assert any("weights collapsed in 1 of 1 seeds" in note for note in written["notes"]) == (rate == 30.0)


def test_where_it_is_not_fitted(sets, tmp_path, monkeypatch):
    plan, said = HeadPlan(HeadSpec("abmilp"), RECIPE, seeds=(0, 1)), []
    assert "converged_top1" not in probe(*sets, tmp_path / "off", plan, converged=False)["off"]
    monkeypatch.setattr("probe.convergence.AFFORDABLE", 1)
    assert "converged_top1" not in probe(*sets, tmp_path / "large", plan, say=said.append)["large"]
    assert any("240 images x" in message and "--converged" in message for message in said)
    assert "converged_top1" in probe(*sets, tmp_path / "asked", plan, converged=True)["asked"]


def test_crops_are_not_what_it_is_fitted_to(tmp_path):
    """It is fitted to evaluation crops, also where training shows others."""
    sides = write_features(tmp_path / "train", 120, views=3), write_features(tmp_path / "test", 60, seed=1)
    by_views = {
        views: probe(*sides, tmp_path / str(views), HeadPlan(HeadSpec("cls"), RECIPE, seeds=(0,)), views=views)[str(views)]
        for views in (1, 3)
    }
    assert by_views[1]["converged_top1"] == by_views[3]["converged_top1"]


def test_it_is_fitted_to_heads_that_were_trained_without_and_nothing_trains(sets, tmp_path, monkeypatch):
    plan = HeadPlan(HeadSpec("abmilp"), RECIPE, seeds=(0, 1), base_lrs=(0.05, 0.1))
    expected = probe(*sets, tmp_path / "at-once/h", plan, converged=True)["h"]
    assert "converged_top1" not in probe(*sets, tmp_path / "later/h", plan, converged=False)["h"]
    monkeypatch.setattr("probe.passes.go_on", None)
    monkeypatch.setitem(sets[0].attributes, "family", "labels")  # the description of the head that is kept changes, too
    written = probe(*sets, tmp_path / "later/h", plan, converged=True)["h"]
    assert written["converged_top1"] == expected["converged_top1"]
    places = [tmp_path / f"{place}/h/trained" for place in ("at-once", "later")]
    once, later = ({f.name: f.read_bytes() for f in place.iterdir()} for place in places)
    assert {name for name in once if once[name] != later.get(name)} == set()
