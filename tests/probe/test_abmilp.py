"""AbMILP against its equation, written out per token."""

import math
from itertools import chain

import pytest
import torch
from torch.nn.functional import gelu

from probe.aggregators import make_aggregator
from probe.aggregators.abmilp import sin_cos
from store import BeyondClsError

torch.manual_seed(7)
SHAPES = {"patch": (9, 8), "cls": (8,)}
FEATURES = {f"{kind}{at}": torch.randn(2, *SHAPES[kind]).double() for kind in SHAPES for at in ("", "/block3", "/block5")}
ACTIVATIONS = {"relu": torch.relu, "gelu": gelu, "tanh": torch.tanh}
OF_ANY_DEPTH = (
    {"tokens": "all"},
    {"tokens": "all", "position": "sin-cos"},
    {"tokens": "all", "position": "learned"},
    {"blocks": [3, 5], "position": "sin-cos"},
    {"blocks": [3, 5], "position": "learned", "tokens": "all"},
    {"branches": 3},
    {"branches": 3, "combine": "average"},
    {"branches": 2, "top_k": 1},
)
BEHIND_ATTENTION = ({}, {"depth": 2, "activation": "tanh"}, {"position": "sin-cos"}, {"branches": 2})
CASES = [
    {},
    *({"depth": depth, "activation": name} for depth, name in zip((2, 3, 4), ACTIVATIONS, strict=True)),
    *({"depth": depth, **options} for depth in (1, 2) for options in OF_ANY_DEPTH),
    *({"apply_to": use, **options} for use in ("both", "map") for options in BEHIND_ATTENTION),
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_equation_6(options):
    torch.manual_seed(0)
    a = make_aggregator("sa-abmilp" if "apply_to" in options else "abmilp", 8, 9, **options).double()
    kinds = ("cls", "patch") if options.get("tokens") == "all" else ("patch",)
    by_block = [[f"{kind}/block{block}" for kind in kinds] for block in options.get("blocks", ())] or [kinds]
    assert a.reads == tuple(chain(*by_block))
    bag = torch.cat([x if x.ndim == 3 else x[:, None] for x in map(FEATURES.get, a.reads)], 1)  # [B, N, D]
    scored = content = bag
    if "apply_to" in options:
        q, k, v = (bag @ w.T for w in a.qkv.weight.chunk(3))
        scored = a.proj((q @ k.mT / math.sqrt(8)).softmax(-1) @ v)
        content = scored if options["apply_to"] == "both" else bag
    if "position" in options:  # scored, not summed
        scored = scored + torch.cat([torch.zeros(len(kinds) - 1, 8), sin_cos(9, 8)]).double().repeat(len(by_block), 1)
    assert ("position" in a.state_dict()) == (options.get("position") == "learned")
    layers = [layer for layer in a.score if isinstance(layer, torch.nn.Linear)]
    assert len(layers) == options.get("depth", 1)
    for i, layer in enumerate(layers):
        scored = (ACTIVATIONS[options.get("activation", "relu")](scored) if i else scored) @ layer.weight.T + layer.bias
    weights = scored.softmax(1)  # [B, N, k]
    if "top_k" in options:  # each branch keeps its own largest
        weights = (weights == weights.amax(1, keepdim=True)).double()
    vectors = torch.einsum("bnk,bnd->bkd", weights, content)
    vector = vectors.mean(1) if options.get("combine") == "average" else vectors.flatten(1)
    expected = vector, weights.mean(2).unflatten(1, (len(by_block), -1)).sum(1)
    torch.testing.assert_close(tuple(a(FEATURES)), expected)


def test_positions_of_another_grid():
    aggregator = make_aggregator("abmilp", 8, 9, tokens="all", position="sin-cos").double()
    with pytest.raises(BeyondClsError, match="4 patches, expected 9"):
        aggregator({"patch": FEATURES["patch"][:, :4], "cls": FEATURES["cls"]})


def test_codes_are_sines_and_cosines_of_column_and_row():
    codes = sin_cos(9, 8)
    for row in range(3):
        for column in range(3):
            expected = [f(x * w) for x in (column, row) for f in (math.sin, math.cos) for w in (1, 0.01)]
            assert codes[3 * row + column].tolist() == pytest.approx(expected, abs=1e-6)
