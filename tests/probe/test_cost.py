"""What heads cost, against closed forms: T patches of width D, H queries or attention heads, K classes."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from probe.aggregators import AGGREGATORS, Aggregator, Pooled, make_aggregator
from probe.cost import Cost, bytes_read, cost_of, shapes_read
from probe.head import FinalNorm, Head
from probe.sources import Source
from store import onednn
from tests.features import write_features

T, D, K = 16, 96, 5
SHAPES = dict.fromkeys(("patch", "patch/block1", "patch/block2"), (T, D)) | dict.fromkeys(
    ("attention/cls", "attention/centre", "joined/attention/cls"), (3, T)
)
SHAPES |= dict.fromkeys(("cls", "pooled"), (D,))
CLASSIFIER = 2 * D * K


def cost(name: str, **options: object) -> Cost:
    return cost_of(Head(make_aggregator(name, D, T, **options), K), SHAPES)


@pytest.mark.parametrize(
    ("name", "options", "parameters", "flops"),
    [
        ("cls", {}, 0, CLASSIFIER),
        ("average", {}, 0, CLASSIFIER),  # a sum is no product
        ("central", {}, 0, CLASSIFIER),
        ("cls-average", {}, 0, 2 * CLASSIFIER),
        ("abmilp", {}, D + 1, 2 * T * D + 2 * T * D + CLASSIFIER),
        ("abmilp", {"depth": 2}, D * D + D + D + 1, 2 * T * D * D + 2 * T * D + 2 * T * D + CLASSIFIER),
        ("abmilp", {"branches": 8}, 8 * (D + 1), 8 * (4 * T * D + CLASSIFIER)),
        ("abmilp", {"branches": 8, "combine": "average"}, 8 * (D + 1), 8 * 4 * T * D + CLASSIFIER),
        ("abmilp", {"blocks": [1, 2]}, D + 1, 2 * 4 * T * D + CLASSIFIER),
        (
            "sa-abmilp",
            {},
            4 * D * D + D + D + 1,
            4 * 2 * T * D * D + 2 * 2 * T * T * D + 4 * T * D + CLASSIFIER,
        ),
        # The query goes through the keys' projection once, the pooled vectors through the values': no token does.
        ("ap", {"heads": 1}, 2 * D * D + D, 2 * D * D + 4 * T * D + 2 * D * D + CLASSIFIER),
        ("ap", {"heads": 12}, 2 * D * D + D, 2 * D * D + 12 * 4 * T * D + 2 * D * D + CLASSIFIER),
        ("ep", {"queries": 16}, 16 * D + D * D, 16 * 4 * T * D + 2 * D * D + CLASSIFIER),
        ("simpool", {}, 2 * D * D + 2 * D, 2 * D * D + 2 * D * D + 4 * T * D + CLASSIFIER),
        ("cls-attention", {}, 0, 2 * T * D + CLASSIFIER),
        ("cls-attention", {"of": "joined"}, 0, 2 * T * D + CLASSIFIER),
        ("lowest-entropy-head", {}, 0, 2 * T * D + CLASSIFIER),
        ("central-attention", {}, 0, 2 * T * D + CLASSIFIER),
    ],
)
def test_closed_forms(name, options, parameters, flops):
    measured = cost(name, **options)
    width = make_aggregator(name, D, T, **options).width
    assert (measured.parameters, measured.parameters_classifier, measured.flops_per_image) == (parameters, width * K + K, flops)


SCORE, HIDDEN = D + 1, D * D + D  # a linear layer to one score, and one as wide as the tokens
SELF_ATTENTION = 4 * D * D + D


@pytest.mark.parametrize(
    ("name", "options", "parameters", "width"),
    [
        ("abmilp", {"depth": 2, "activation": "tanh"}, HIDDEN + SCORE, D),
        ("abmilp", {"depth": 4, "activation": "gelu"}, 3 * HIDDEN + SCORE, D),
        ("abmilp", {"position": "sin-cos"}, SCORE, D),
        ("abmilp", {"position": "learned", "tokens": "all"}, SCORE + (T + 1) * D, D),
        ("abmilp", {"position": "learned", "depth": 2, "blocks": [3, 5]}, HIDDEN + SCORE + T * D, D),
        ("abmilp", {"branches": 3}, 3 * SCORE, 3 * D),
        ("abmilp", {"branches": 3, "combine": "average", "depth": 2}, HIDDEN + 3 * SCORE, D),
        ("sa-abmilp", {"apply_to": "map", "depth": 2}, SELF_ATTENTION + HIDDEN + SCORE, D),
        ("sa-abmilp", {"branches": 2, "tokens": "all"}, SELF_ATTENTION + 2 * SCORE, 2 * D),
        ("ap", {"heads": 4, "norm": True}, 2 * D * D + 3 * D, D),
        ("ap", {"form": "aim"}, 2 * D * D + D, D),
        ("ap", {"form": "cae"}, 4 * D * D + 10 * D, D),
        ("ep", {}, 32 * D + D * D, D),
        ("ep", {"queries": 8, "divide": 2}, 8 * D + D * D // 2, D // 2),
        ("v-jepa", {}, 12 * D * D + 14 * D, D),
        ("v-jepa-2", {}, 11 * D * D + 13 * D + 3 * (12 * D * D + 13 * D), D),
        ("v-jepa", {"heads": 2, "ratio": 1, "top_k": 3}, 6 * D * D + 11 * D, D),
    ],
)
def test_parameters_and_width_are_those_of_the_papers(name, options, parameters, width):
    aggregator = make_aggregator(name, D, T, **options)
    assert sum(p.numel() for p in aggregator.parameters()) == parameters
    assert (aggregator.width, aggregator.trainable) == (width, parameters > 0)


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


@pytest.mark.parametrize(("name", "options"), [("abmilp", {"branches": 8}), ("ep", {"queries": 16}), ("ap", {"heads": 12})])
def test_products_of_onednn_are_counted_too(name, options, monkeypatch):
    """With so many queries, a CPU with AVX-512 leaves their products to oneDNN, which the counter does not know."""
    monkeypatch.setattr(onednn, "is_faster", lambda: False)
    plain = cost(name, **options)
    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    assert cost(name, **options) == plain


def test_the_head_stays_as_it_is():
    head = Head(make_aggregator("abmilp", D), K, final_norm=FinalNorm(torch.ones(D), torch.zeros(D), 1e-6))
    before = {name: value.clone() for name, value in head.state_dict().items()}
    normalised = cost_of(head, SHAPES)
    assert normalised.memory_per_image == 4 * (2 * T * D + 2 * T)  # tokens in and out, their means and deviations
    # A norm is no product, and its parameters are not trained.
    assert replace(normalised, memory_per_image=None) == replace(cost("abmilp"), memory_per_image=None)
    assert head.training
    assert {name: value.device.type for name, value in head.state_dict().items()} == dict.fromkeys(before, "cpu")
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


class UntilSmall(Aggregator):
    """What it does depends on values."""

    reads = ("patch",)

    def __init__(self, dim: int):
        super().__init__(dim)
        self.score = nn.Linear(dim, 1)

    def forward(self, features):
        x = features["patch"].mean(1)
        while x.norm() > 1:
            x = x / 2
        return Pooled(x, None)


def test_what_cannot_be_counted_is_not_made_up():
    assert cost_of(Head(UntilSmall(D), K), SHAPES) == Cost(D + 1, D * K + K, None)


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
