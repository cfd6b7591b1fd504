"""A converged classifier beside each trained head."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probe.closed import Logistic, Vectors
from probe.grid import HeadPlan, HeadSpec
from probe.metrics import top_k_hits
from probe.recipe import Recipe
from probe.result_files import read_result
from probe.run import probe
from probe.saved import load_probe
from tests.features import write_features
from tests.folders import files

RECIPE = Recipe(epochs=12, batch_size=32, warmup_epochs=0)


def write(folder, n=240, **options):
    return [write_features(folder / f"set{i}", n, seed=i, **options) for i, n in enumerate((n, 90))]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sets"), signal=0.4)


@pytest.mark.parametrize("name", ["average", "abmilp"])
def test_it_is_logistic_regression_of_the_vectors_of_each_seed(name, sets, tmp_path):
    written = probe(*sets, tmp_path / name, HeadPlan(HeadSpec(name), RECIPE, seeds=(0, 1)))[name]
    with np.load(tmp_path / name / "trained/correct.npz") as file:
        correct, converged = file["correct"], file["converged"]
    for seed in (0, 1):
        aggregator, sides = load_probe(tmp_path / name / f"trained/seed{seed}").aggregator, []
        for store in sets:
            tokens = {kind: torch.from_numpy(np.asarray(store.tokens(kind).all())).float() for kind in aggregator.reads}
            sides.append(Vectors(aggregator(tokens)[0].detach(), np.array(store.labels), store.n_classes))
        right = top_k_hits(Logistic().fit(*sides).scores, sides[1].labels).numpy()
        assert (converged[seed] == right).mean() > 0.98  # products in another order
        difference = converged[seed].astype(float) - correct[seed]
        short = difference.mean() / (difference.std(ddof=1) / np.sqrt(90)) if difference.any() else 0.0
        assert written["short_of_converged"]["values"][seed] == pytest.approx(short)
        assert written["converged_top1"]["values"][seed] == pytest.approx(100 * converged[seed].mean())
    assert read_result(tmp_path / name / "metrics.json") == written


@pytest.mark.parametrize(
    ("head", "rate", "epochs", "words", "says"),
    [
        ("average", 1e-5, 1, "not trained out", True),
        ("average", 0.3, 60, "not trained out", False),
        ("abmilp", 1e-3, 12, "weights collapsed in 1 of 1 seeds", False),
        ("abmilp", 30.0, 12, "weights collapsed in 1 of 1 seeds", True),
    ],
)
def test_a_head_that_is_not_trained_out_or_has_collapsed_says_so(head, rate, epochs, words, says, sets, tmp_path):
    plan = HeadPlan(HeadSpec(head), replace(RECIPE, base_lr=rate, epochs=epochs), seeds=(0,))
    written = probe(*(write(tmp_path) if head == "average" else sets), tmp_path / "h", plan)["h"]
    assert any(words in note for note in written["notes"]) == says
    assert head == "average" or (written["entropy"]["mean"] < np.log(2)) == says


def test_crops_are_neither_what_it_is_fitted_to_nor_said_to_be_undertrained(tmp_path):
    """It is fitted to evaluation crops, which a head that is trained on others never saw."""
    sides, plan = write(tmp_path, views=3), HeadPlan(HeadSpec("average"), replace(RECIPE, base_lr=1e-5, epochs=1), seeds=(0,))
    by_views = {views: probe(*sides, tmp_path / str(views), plan, views=views)[str(views)] for views in (1, 3)}
    assert by_views[1]["converged_top1"] == by_views[3]["converged_top1"]
    for views, start in ((3, "top1 "), (1, "not trained out")):
        assert next(note for note in by_views[views]["notes"] if "converged classifier" in note).startswith(start)


def test_where_it_is_not_fitted(sets, tmp_path, monkeypatch):
    plan, said = HeadPlan(HeadSpec("abmilp"), replace(RECIPE, epochs=1), seeds=(0, 1)), []
    assert "converged_top1" not in probe(*sets, tmp_path / "off", plan, converged=False)["off"]
    monkeypatch.setattr("probe.convergence.AFFORDABLE", 1)
    assert "converged_top1" not in probe(*sets, tmp_path / "large", plan, say=said.append)["large"]
    assert any("240 images x" in message and "--converged" in message for message in said)
    assert "converged_top1" in probe(*sets, tmp_path / "asked", plan, converged=True)["asked"]


def test_it_is_fitted_to_heads_that_were_trained_without_and_nothing_trains(sets, tmp_path, monkeypatch):
    plan = HeadPlan(HeadSpec("abmilp"), replace(RECIPE, epochs=3), seeds=(0, 1))
    expected = probe(*sets, tmp_path / "at-once/h", plan, converged=True)["h"]
    assert "converged_top1" not in probe(*sets, tmp_path / "later/h", plan, converged=False)["h"]
    monkeypatch.setattr("probe.passes.go_on", None)
    monkeypatch.setitem(sets[0].attributes, "family", "labels")  # the description of the head that is kept changes, too
    written = probe(*sets, tmp_path / "later/h", plan, converged=True)["h"]
    assert written["converged_top1"] == expected["converged_top1"]
    assert files(tmp_path / "at-once/h/trained") == files(tmp_path / "later/h/trained")
