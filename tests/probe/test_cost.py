"""What heads cost, against closed forms: T patches of width D, H queries or attention heads, K classes; and how long they take.

Time is kept apart from what must be the same again; times themselves are not tested.
"""

import itertools
import json
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from probe import run, timing
from probe.aggregators import AGGREGATORS, make_aggregator
from probe.cost import Cost, bytes_read, cost_of, shapes_read
from probe.grid import HeadPlan, HeadSpec
from probe.head import FinalNorm, Head
from probe.recipe import Recipe
from probe.sources import Source
from probe.timing import FILE, fastest, measure_head, time_head
from store import onednn
from tests.decoys import ROOT
from tests.features import write_features

T, D, K = 16, 96, 5
KINDS = ("patch", "patch/block1", "patch/block2", "attention/cls", "attention/centre", "joined/attention/cls", "cls", "pooled")
SHAPES = {kind: (T, D) if "patch" in kind else (3, T) if "attention" in kind else (D,) for kind in KINDS}
CLASSIFIER, POOLING = 2 * D * K, 2 * T * D + 2 * T * D  # FLOPs of the classifier; of scores by one query, and the sum
SCORE, HIDDEN = D + 1, D * D + D  # parameters of a linear layer to one score, and of one as wide as the tokens
SELF_ATTENTION = 4 * D * D + D


def cost(name: str, **options: object) -> Cost:
    return cost_of(Head(make_aggregator(name, D, T, **options), K), SHAPES)


@pytest.mark.parametrize(
    ("name", "options", "parameters", "width", "flops"),
    [
        ("cls", {}, 0, D, CLASSIFIER),
        ("average", {}, 0, D, CLASSIFIER),  # a sum is no product
        ("cls-average", {}, 0, 2 * D, 2 * CLASSIFIER),
        ("abmilp", {}, SCORE, D, POOLING + CLASSIFIER),
        ("abmilp", {"depth": 2}, HIDDEN + SCORE, D, 2 * T * D * D + POOLING + CLASSIFIER),
        ("abmilp", {"branches": 8}, 8 * SCORE, 8 * D, 8 * (POOLING + CLASSIFIER)),
        ("abmilp", {"branches": 8, "combine": "average"}, 8 * SCORE, D, 8 * POOLING + CLASSIFIER),
        ("abmilp", {"blocks": [1, 2]}, SCORE, D, 2 * POOLING + CLASSIFIER),
        ("sa-abmilp", {}, SELF_ATTENTION + SCORE, D, 8 * T * D * D + 4 * T * T * D + POOLING + CLASSIFIER),
        # The query goes through the keys' projection once, the pooled vectors through the values': no token does.
        *(("ap", {"heads": h}, 2 * D * D + D, D, 2 * D * D + h * POOLING + 2 * D * D + CLASSIFIER) for h in (1, 12)),
        ("ep", {"queries": 16}, 16 * D + D * D, D, 16 * POOLING + 2 * D * D + CLASSIFIER),
        ("simpool", {}, 2 * D * D + 2 * D, D, 2 * D * D + 2 * D * D + POOLING + CLASSIFIER),
        *((f"{row}-attention", {}, 0, D, 2 * T * D + CLASSIFIER) for row in ("cls", "central")),
        ("lowest-entropy-head", {}, 0, D, 2 * T * D + CLASSIFIER),
        # What the papers and their codes count.
        ("abmilp", {"position": "sin-cos"}, SCORE, D, None),
        ("abmilp", {"position": "learned", "depth": 2, "blocks": [3, 5]}, HIDDEN + SCORE + T * D, D, None),
        ("ap", {"heads": 4, "norm": True}, 2 * D * D + 3 * D, D, None),
        ("ap", {"form": "cae"}, 4 * D * D + 10 * D, D, None),
        ("ep", {"queries": 8, "divide": 2}, 8 * D + D * D // 2, D // 2, None),
        ("v-jepa", {}, 12 * D * D + 14 * D, D, None),
        ("v-jepa-2", {}, 11 * D * D + 13 * D + 3 * (12 * D * D + 13 * D), D, None),
    ],
)
def test_closed_forms(name, options, parameters, width, flops):
    head = Head(make_aggregator(name, D, T, **options), K)
    measured = cost_of(head, SHAPES)
    assert (measured.parameters, measured.parameters_classifier) == (parameters, width * K + K)
    assert (head.aggregator.width, head.aggregator.trainable) == (width, parameters > 0)
    assert flops is None or measured.flops_per_image == flops


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_aggregator_is_counted(name):
    assert cost(name).flops_per_image is not None
    assert cost(name).memory_per_image is not None


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("cls", 4 * D),  # batch normalisation: a vector in and out, and what it was divided by
        ("average", T * D + D),
        ("abmilp", T * D + T + D),  # tokens, their weights, and the sum
        ("cls-attention", T * D + T + D),
    ],
)
def test_memory_is_what_the_largest_operation_reads_and_writes(name, numbers):
    assert cost(name).memory_per_image == 4 * numbers


def test_products_of_onednn_are_counted_too(monkeypatch):
    """With so many queries, a CPU with AVX-512 leaves their products to oneDNN, which the counter does not know."""
    monkeypatch.setattr(onednn, "is_faster", lambda: False)
    plain = cost("abmilp", branches=8)
    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    assert cost("abmilp", branches=8) == plain


def test_the_head_stays_as_it_is():
    head = Head(make_aggregator("abmilp", D), K, final_norm=FinalNorm(torch.ones(D), torch.zeros(D), 1e-6))
    before = {name: value.clone() for name, value in head.state_dict().items()}
    normalised = cost_of(head, SHAPES)
    assert normalised.memory_per_image == 4 * (2 * T * D + 2 * T)  # tokens in and out, their means and deviations
    # A norm is no product, and its parameters are not trained.
    assert replace(normalised, memory_per_image=None) == replace(cost("abmilp"), memory_per_image=None)
    assert head.training
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_shapes_and_bytes_are_those_of_what_a_head_reads(tmp_path):
    first_set = write_features(tmp_path / "own", 12, n_tokens=9, dim=8, blocks=(0, 1), crops=True)
    other = write_features(tmp_path / "other", 12, n_tokens=9, dim=6, weights="v", crops=True)
    source = Source(first_set, other)
    for name, options, shapes in (
        ("cls", {}, {"cls": (8,)}),
        ("abmilp", {"blocks": [0, 1]}, {"patch/block0": (9, 8), "patch/block1": (9, 8)}),
        ("cls-attention", {"of": "joined"}, {"patch": (9, 8), "joined/attention/cls": (3, 9)}),
    ):
        head = Head(make_aggregator(name, 8, **options), 3)
        assert shapes_read(head, source) == shapes
        assert bytes_read(head, source) == 2 * sum(math.prod(shape) for shape in shapes.values())  # float16


probe = partial(run.probe, converged=False)  # converged classifiers: test_convergence.py
CPU = torch.device("cpu")
PLANS = {"abmilp": HeadPlan(recipe=Recipe(epochs=1, warmup_epochs=0), seeds=(0,))}


@pytest.mark.parametrize(
    ("ticks", "seconds", "n"),
    [
        ([0, 3, 1, 2, 1, 5, 1, 4, 1, 4], 2, 6),  # rounds of 3, 2, 5, 4, 4 seconds, after one that does not count
        ([0, 10], 10, 2),  # a slow head is timed once
    ],
)
def test_the_fastest_round_counts(ticks, seconds, n, monkeypatch):
    clock = itertools.accumulate(ticks)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr(timing, "SECONDS", 9.0 if n == 2 else 100.0)
    ran = []
    assert (fastest(lambda: ran.append(1), CPU), len(ran)) == (seconds, n)


def test_time_stands_beside_the_metrics_and_not_in_them_and_leaves_the_head_as_it_is(tmp_path):
    sets = write_features(tmp_path / "train", 20), write_features(tmp_path / "test", 10, seed=1)
    head = Head(make_aggregator("abmilp", 8), 3)
    found = time_head(head, Source(sets[1]), CPU)
    assert found.ms_per_image > 0
    assert (found.n_images, found.device, found.threads) == (10, "cpu", torch.get_num_threads())
    assert head.training
    assert not head.norm.num_batches_tracked  # no statistics of the batch
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


@pytest.mark.parametrize(
    ("spec", "reads", "is_pooled", "width", "multilabel"),
    [
        (HeadSpec("cls-average"), {"cls": (8,), "patch": (6, 8)}, True, 16, False),
        (HeadSpec("cls-attention"), {"patch": (6, 8), "attention/cls": (2, 6)}, True, 8, True),
        (HeadSpec("abmilp", {"blocks": [0]}, final_norm=True), {"patch/block0": (6, 8)}, False, 8, False),
    ],
    ids=["averages", "maps", "parameters"],
)
def test_vectors_without_parameters_are_pooled_apart(spec, reads, is_pooled, width, multilabel, monkeypatch):
    labels, losses_of, generator = [], timing.losses_of, torch.get_rng_state()
    monkeypatch.setattr(timing, "losses_of", lambda logits, y: labels.append(y) or losses_of(logits, y))
    rate = measure_head(spec, reads, 2, 3, multilabel, CPU)
    assert (rate.is_pooled, rate.width) == (is_pooled, width)
    assert min(rate.learn_s, rate.judge_s) > 0
    assert {y.ndim for y in labels} == {1 + multilabel}
    assert torch.equal(torch.get_rng_state(), generator)
