"""Closed forms and bad input of single aggregators."""

import math

import pytest
import torch

from probe.aggregators import AbMILP, make_aggregator
from probe.head import Head
from probe.metrics import weight_entropy
from store import BeyondClsError


def test_abmilp_of_zero_scores_is_the_average():
    patch = torch.randn(3, 7, 5)
    aggregator = AbMILP(5)
    torch.nn.init.zeros_(aggregator.score[-1].weight)
    pooled = aggregator({"patch": patch})
    torch.testing.assert_close(pooled.vector, patch.mean(1))
    torch.testing.assert_close(weight_entropy(pooled.weights), torch.full((3,), math.log(7), dtype=torch.float64))


def test_abmilp_is_equation_6():
    patch, aggregator = torch.randn(2, 4, 3), AbMILP(3)
    w, b = aggregator.score[-1].weight[0].tolist(), aggregator.score[-1].bias.item()
    for image, (vector, weights) in enumerate(zip(*aggregator({"patch": patch}), strict=True)):
        score = [sum(wi * zi for wi, zi in zip(w, z, strict=True)) + b for z in patch[image].tolist()]
        total = sum(math.exp(s) for s in score)
        expected = [math.exp(s) / total for s in score]
        assert weights.tolist() == pytest.approx(expected, abs=1e-6)
        pooled = [sum(expected[i] * patch[image, i, d].item() for i in range(4)) for d in range(3)]
        assert vector.tolist() == pytest.approx(pooled, abs=1e-6)


def test_abmilp_of_depth_1_has_d_plus_1_parameters():
    assert sum(p.numel() for p in AbMILP(192).parameters()) == 193
    assert sum(p.numel() for p in AbMILP(192, depth=2).parameters()) == 193 + 192 * 193


def test_scores_of_a_thousand_do_not_overflow():
    aggregator = AbMILP(2)
    with torch.no_grad():
        aggregator.score[-1].weight.fill_(1000)
    pooled = aggregator({"patch": torch.tensor([[[1.0, 0], [2, 0], [0, 0]]])})
    assert pooled.weights.tolist() == [[0, 1, 0]]


def test_unknown_aggregator_suggests_the_nearest():
    with pytest.raises(BeyondClsError, match="unknown aggregator 'abmlip'; did you mean 'abmilp'"):
        make_aggregator("abmlip", 4)


def test_options_that_an_aggregator_does_not_take():
    with pytest.raises(BeyondClsError, match=r"aggregator 'cls' was given {'depth': 2}.*depth"):
        make_aggregator("cls", 4, depth=2)
    with pytest.raises(BeyondClsError, match="depth is 0, expected 1"):
        make_aggregator("abmilp", 4, depth=0)
    with pytest.raises(BeyondClsError, match="unknown activation 'rleu'; did you mean 'relu'"):
        make_aggregator("abmilp", 4, depth=2, activation="rleu")


def test_head_normalises_as_the_official_one():
    head = Head(make_aggregator("cls", 6), 6, 4)
    assert (head.norm.eps, head.norm.affine) == (1e-6, False)
    x = torch.randn(64, 6) * 50 + 7
    logits, _ = head({"cls": x})
    standardised = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-6).sqrt()
    torch.testing.assert_close(logits, standardised @ head.classifier.weight.T, rtol=1e-4, atol=1e-5)
