"""How long heads take is measured, and kept apart from what must be the same again; times themselves are not tested."""

import itertools
import json
from types import SimpleNamespace

import pytest
import torch

from probe import timing
from probe.aggregators import make_aggregator
from probe.grid import HeadPlan, HeadSpec
from probe.head import Head
from probe.recipe import Recipe
from probe.run import probe
from probe.sources import Source
from probe.timing import FILE, fastest, measure_head, time_head
from tests.decoys import ROOT
from tests.features import write_features

CPU = torch.device("cpu")
PLANS = {"abmilp": HeadPlan(recipe=Recipe(epochs=1, warmup_epochs=0), seeds=(0,))}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return write_features(folder / "train", 20), write_features(folder / "test", 10, seed=1)


@pytest.mark.parametrize(
    ("ticks", "seconds", "n"),
    [
        (
            [0, 3, 1, 2, 1, 5, 1, 4, 1, 4],
            2,
            6,
        ),  # starts and ends: rounds of 3, 2, 5, 4, 4 seconds after one that does not count
        ([0, 10], 10, 2),  # a slow head is timed once
    ],
)
def test_the_fastest_round_counts(ticks, seconds, n, monkeypatch):
    clock = itertools.accumulate(ticks)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr(timing, "SECONDS", 9.0 if n == 2 else 100.0)
    ran = []
    assert (fastest(lambda: ran.append(1), CPU), len(ran)) == (seconds, n)


def test_it_is_of_the_forward_pass_and_leaves_the_head_as_it_is(sets):
    head = Head(make_aggregator("abmilp", 8), 3)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    found = time_head(head, Source(sets[1]), CPU)
    assert found.ms_per_image > 0
    assert (found.n_images, found.device, found.threads) == (10, "cpu", torch.get_num_threads())
    assert head.training
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())  # no statistics of the batch


def test_it_stands_beside_the_metrics_and_not_in_them(sets, tmp_path):
    timed = probe(*sets, tmp_path / "out", PLANS, timed=True)
    written = json.loads((tmp_path / "out/abmilp/timing.json").read_text())
    of_training = {"training_s", "n_trained_together"}
    assert set(written) == {"ms_per_image", "n_images", "device", "threads", "metrics", *of_training}
    assert written["training_s"] > 0
    assert written["n_trained_together"] == len(PLANS)
    assert FILE in (ROOT / ".dvcignore").read_text().splitlines()  # DVC compares outputs, and what stages depend on, bit by bit
    assert probe(*sets, tmp_path / "out", PLANS, retrain=True) == timed
    assert not (tmp_path / "out/abmilp/timing.json").exists()  # it was of the earlier run
    assert timed["abmilp"]["cost"]["bytes_per_image"] == 9 * 8 * 2


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize(
    ("spec", "reads", "is_pooled", "width"),
    [
        (HeadSpec("cls"), {"cls": (8,)}, True, 8),
        (HeadSpec("cls-average"), {"cls": (8,), "patch": (6, 8)}, True, 16),
        (HeadSpec("cls-attention"), {"patch": (6, 8), "attention/cls": (2, 6)}, True, 8),
        (HeadSpec("abmilp", final_norm=True), {"patch": (6, 8)}, False, 8),
        (HeadSpec("abmilp", {"blocks": [0]}), {"patch/block0": (6, 8)}, False, 8),
    ],
    ids=str,
)
def test_vectors_without_parameters_are_pooled_apart(spec, reads, is_pooled, width, multilabel, monkeypatch):
    labels, losses_of, generator = [], timing.losses_of, torch.get_rng_state()
    monkeypatch.setattr(timing, "losses_of", lambda logits, y: labels.append(y) or losses_of(logits, y))
    rate = measure_head(spec, reads, 2, 3, multilabel, CPU)
    assert (rate.is_pooled, rate.width) == (is_pooled, width)
    assert min(rate.learn_s, rate.judge_s) > 0
    assert {y.ndim for y in labels} == {1 + multilabel}
    assert torch.equal(torch.get_rng_state(), generator)
