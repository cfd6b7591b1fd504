"""How long heads take is measured, and kept apart from what must be the same again; times themselves are not tested."""

import itertools
import json
from types import SimpleNamespace

import pytest
import torch

from probe import rates, timing
from probe.aggregators import make_aggregator
from probe.grid import HeadPlan, HeadSpec
from probe.head import Head
from probe.rates import HeadRate, measure_head
from probe.recipe import Recipe
from probe.run import probe
from probe.sources import Source
from probe.timing import FILE, fastest, time_head
from probe.train import losses_of
from tests.decoys import ROOT
from tests.features import write_features

CPU = torch.device("cpu")
PLANS = {"abmilp": HeadPlan(recipe=Recipe(epochs=1, warmup_epochs=0), seeds=(0,))}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return write_features(folder / "train", 20), write_features(folder / "test", 10, seed=1)


def test_the_fastest_round_counts_and_the_first_run_does_not(monkeypatch):
    ticks = itertools.accumulate([0, 3, 1, 2, 1, 5, 1, 4, 1, 4])  # starts and ends: rounds of 3, 2, 5, 4, 4 seconds
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(timing, "SECONDS", 100.0)
    ran = []
    assert fastest(lambda: ran.append(1), CPU) == 2
    assert len(ran) == 6


def test_a_slow_head_is_timed_once(monkeypatch):
    ticks = itertools.count(0, 10)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    ran = []
    assert fastest(lambda: ran.append(1), CPU) == 10
    assert len(ran) == 2


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


SHAPES = {"patch": (6, 8), "cls": (8,)}


def measured(spec: HeadSpec, reads: tuple[str, ...], multilabel: bool = False) -> HeadRate:
    shapes = {**SHAPES, "attention/cls": (2, 6), "patch/block0": (6, 8)}
    return measure_head(spec, {kind: shapes[kind] for kind in reads}, 2, 3, multilabel, CPU)


@pytest.mark.parametrize(
    ("spec", "reads", "is_pooled", "width"),
    [
        (HeadSpec("cls"), ("cls",), True, 8),
        (HeadSpec("cls-average"), ("cls", "patch"), True, 16),
        (HeadSpec("cls-attention"), ("patch", "attention/cls"), True, 8),
        (HeadSpec("abmilp"), ("patch",), False, 8),
        (HeadSpec("abmilp", final_norm=True), ("patch",), False, 8),
        (HeadSpec("abmilp", {"blocks": [0]}), ("patch/block0",), False, 8),
    ],
)
def test_vectors_without_parameters_are_pooled_apart(
    spec: HeadSpec, reads: tuple[str, ...], is_pooled: bool, width: int
) -> None:
    rate = measured(spec, reads)
    assert (rate.is_pooled, rate.width) == (is_pooled, width)
    assert min(rate.learn_s, rate.judge_s) > 0


@pytest.mark.parametrize("multilabel", [False, True])
def test_losses_are_those_of_the_labels(multilabel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    dimensions = set()

    def noted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        dimensions.add(labels.ndim)
        return losses_of(logits, labels)

    monkeypatch.setattr(rates, "losses_of", noted)
    assert measured(HeadSpec("abmilp"), ("patch",), multilabel).learn_s > 0
    assert dimensions == {2 if multilabel else 1}


def test_random_numbers_stay_as_they_are() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    measured(HeadSpec("abmilp"), ("patch",))
    assert torch.equal(torch.rand(3), expected)
