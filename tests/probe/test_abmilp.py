"""AbMILP against its equation, written out per token."""

import math

import pytest
import torch
from torch.nn.functional import gelu

from probe.aggregators import AbMILP, make_aggregator
from probe.aggregators.abmilp import sin_cos
from store import BeyondClsError

torch.manual_seed(7)
PATCH, CLS = torch.randn(2, 9, 8, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)


def make(seed=0, **options):
    torch.manual_seed(seed)
    return make_aggregator(options.pop("name", "abmilp"), 8, 9, **options).double()


def pooled(tokens, scores, content=None):
    """Eq. 6: vectors and weights [B, …] of scores [B, N]."""
    weights = scores.softmax(-1)
    return ((tokens if content is None else content) * weights[..., None]).sum(1), weights


def test_equation_6_by_hand():
    patch, aggregator = torch.randn(2, 4, 3), AbMILP(3)
    w, b = aggregator.score[-1].weight[0].tolist(), aggregator.score[-1].bias.item()
    for image, (vector, weights) in enumerate(zip(*aggregator({"patch": patch}), strict=True)):
        score = [sum(wi * zi for wi, zi in zip(w, z, strict=True)) + b for z in patch[image].tolist()]
        total = sum(math.exp(s) for s in score)
        expected = [math.exp(s) / total for s in score]
        assert weights.tolist() == pytest.approx(expected, abs=1e-6)
        pooled = [sum(expected[i] * patch[image, i, d].item() for i in range(4)) for d in range(3)]
        assert vector.tolist() == pytest.approx(pooled, abs=1e-6)


def test_scores_of_a_thousand_do_not_overflow():
    aggregator = AbMILP(2)
    with torch.no_grad():
        aggregator.score[-1].weight.fill_(1000)
    assert aggregator({"patch": torch.tensor([[[1.0, 0], [2, 0], [0, 0]]])}).weights.tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize(("activation", "f"), [("relu", torch.relu), ("gelu", gelu), ("tanh", torch.tanh)])
def test_a_perceptron_scores(depth, activation, f):
    aggregator = make(depth=depth, activation=activation)
    layers = [layer for layer in aggregator.score if isinstance(layer, torch.nn.Linear)]
    x = PATCH
    for i, layer in enumerate(layers):
        x = (f(x) if i else x) @ layer.weight.T + layer.bias
    assert len(layers) == depth
    torch.testing.assert_close(tuple(aggregator({"patch": PATCH})), pooled(PATCH, x.squeeze(-1)))


@pytest.mark.parametrize("depth", [1, 2])
def test_the_bag_of_all_has_cls_in_front(depth):
    aggregator = make(tokens="all", depth=depth)
    bag = torch.cat([CLS[:, None], PATCH], 1)
    features = {"patch": PATCH, "cls": CLS}
    torch.testing.assert_close(tuple(aggregator(features)), pooled(bag, aggregator.score(bag).squeeze(-1)))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("position", ["sin-cos", "learned"])
def test_positions_are_scored_and_not_summed(depth, position):
    aggregator = make(tokens="all", depth=depth, position=position)
    bag, codes = torch.cat([CLS[:, None], PATCH], 1), torch.cat([torch.zeros(1, 8), sin_cos(9, 8)]).double()
    scores = aggregator.score(bag + codes).squeeze(-1)
    torch.testing.assert_close(tuple(aggregator({"patch": PATCH, "cls": CLS})), pooled(bag, scores))
    assert ("position" in aggregator.state_dict()) == (position == "learned")


@pytest.mark.parametrize("depth", [1, 2])
def test_positions_of_another_grid(depth):
    aggregator = make(tokens="all", depth=depth, position="sin-cos")
    with pytest.raises(BeyondClsError, match="there are 4 patches, expected 9, as many as AbMILP has positions"):
        aggregator({"patch": PATCH[:, :4], "cls": CLS})


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_lie_in_one_bag(depth):
    aggregator = make(blocks=[3, 5], depth=depth, position="sin-cos")
    assert aggregator.reads == ("patch/block3", "patch/block5")
    deep = torch.randn_like(PATCH)
    bag, codes = torch.cat([PATCH, deep], 1), sin_cos(9, 8).double().repeat(2, 1)
    vector, weights = pooled(bag, aggregator.score(bag + codes).squeeze(-1))
    expected = vector, weights[:, :9] + weights[:, 9:]
    torch.testing.assert_close(tuple(aggregator({"patch/block3": PATCH, "patch/block5": deep})), expected)


@pytest.mark.parametrize("depth", [1, 3])
def test_branches_side_by_side_or_averaged(depth):
    features = {"patch": PATCH}
    beside, average = make(branches=3, depth=depth), make(branches=3, depth=depth, combine="average")
    each = [pooled(PATCH, scores) for scores in beside.score(PATCH).unbind(-1)]
    vectors, weights = (torch.stack(parts) for parts in zip(*each, strict=True))
    torch.testing.assert_close(tuple(beside(features)), (torch.cat(list(vectors), 1), weights.mean(0)))
    torch.testing.assert_close(tuple(average(features)), (vectors.mean(0), weights.mean(0)))


@pytest.mark.parametrize("depth", [1, 2])
def test_each_branch_keeps_its_own_largest(depth):
    aggregator = make(branches=2, depth=depth, top_k=1)
    best = aggregator.score(PATCH).argmax(1)  # [B, k]
    expected = torch.stack([PATCH[i, best[i]].flatten() for i in range(2)])
    torch.testing.assert_close(aggregator({"patch": PATCH}).vector, expected)


@pytest.mark.parametrize("apply_to", ["both", "map"])
@pytest.mark.parametrize("options", [{}, {"depth": 2, "activation": "tanh"}, {"position": "sin-cos"}, {"branches": 2}])
def test_self_attention_comes_before_the_scores(apply_to, options):
    aggregator = make(name="sa-abmilp", apply_to=apply_to, **options)
    q, k, v = (PATCH @ w.T for w in aggregator.qkv.weight.chunk(3))
    y = aggregator.proj((q @ k.mT / math.sqrt(8)).softmax(-1) @ v)
    scores = aggregator.score(y + (sin_cos(9, 8).double() if "position" in options else 0))
    each = [pooled(PATCH, s, y if apply_to == "both" else PATCH) for s in scores.unbind(-1)]
    expected = torch.cat([v for v, _ in each], 1), torch.stack([w for _, w in each]).mean(0)
    torch.testing.assert_close(tuple(aggregator({"patch": PATCH})), expected)


def test_codes_are_sines_and_cosines_of_column_and_row():
    codes = sin_cos(9, 8)
    for row in range(3):
        for column in range(3):
            expected = [f(x * w) for x in (column, row) for f in (math.sin, math.cos) for w in (1, 0.01)]
            assert codes[3 * row + column].tolist() == pytest.approx(expected, abs=1e-6)
