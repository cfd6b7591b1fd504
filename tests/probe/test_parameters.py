"""How wide the vectors of aggregators are, and how many parameters they have: the counts of their papers."""

import pytest

from probe.aggregators import make_aggregator

D, T = 96, 16
SCORE, HIDDEN = D + 1, D * D + D  # a linear layer to one score, and one as wide as the tokens
SELF_ATTENTION = 4 * D * D + D


@pytest.mark.parametrize(
    ("name", "options", "parameters", "width"),
    [
        ("cls", {}, 0, D),
        ("cls-average", {}, 0, 2 * D),
        ("abmilp", {}, SCORE, D),
        ("abmilp", {"depth": 2, "activation": "tanh"}, HIDDEN + SCORE, D),
        ("abmilp", {"depth": 4, "activation": "gelu"}, 3 * HIDDEN + SCORE, D),
        ("abmilp", {"position": "sin-cos"}, SCORE, D),
        ("abmilp", {"position": "learned", "tokens": "all"}, SCORE + (T + 1) * D, D),
        ("abmilp", {"position": "learned", "depth": 2, "blocks": [3, 5]}, HIDDEN + SCORE + T * D, D),
        ("abmilp", {"branches": 3}, 3 * SCORE, 3 * D),
        ("abmilp", {"branches": 3, "combine": "average", "depth": 2}, HIDDEN + 3 * SCORE, D),
        ("sa-abmilp", {}, SELF_ATTENTION + SCORE, D),
        ("sa-abmilp", {"apply_to": "map", "depth": 2}, SELF_ATTENTION + HIDDEN + SCORE, D),
        ("sa-abmilp", {"branches": 2, "tokens": "all"}, SELF_ATTENTION + 2 * SCORE, 2 * D),
        ("ap", {"heads": 1}, 2 * D * D + D, D),
        ("ap", {"heads": 4, "norm": True}, 2 * D * D + 3 * D, D),
        ("ap", {"form": "aim"}, 2 * D * D + D, D),
        ("ap", {"form": "cae"}, 4 * D * D + 10 * D, D),
        ("ep", {}, 32 * D + D * D, D),
        ("ep", {"queries": 8, "divide": 2}, 8 * D + D * D // 2, D // 2),
        ("simpool", {}, 2 * D * D + 2 * D, D),
        ("v-jepa", {}, 12 * D * D + 14 * D, D),
        ("v-jepa", {"heads": 2, "ratio": 1, "top_k": 3}, 6 * D * D + 11 * D, D),
    ],
)
def test_counts(name, options, parameters, width):
    aggregator = make_aggregator(name, D, T, **options)
    assert sum(p.numel() for p in aggregator.parameters()) == parameters
    assert (aggregator.width, aggregator.trainable) == (width, parameters > 0)
