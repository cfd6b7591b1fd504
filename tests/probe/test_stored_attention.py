"""Weights from stored attention maps, by hand."""

import pytest
import torch

from probe.aggregators import make_aggregator
from probe.metrics import weight_entropy
from store import BeyondClsError

torch.manual_seed(7)
PATCH = torch.randn(2, 4, 3, dtype=torch.float64)
# Of the first image head 1 looks at one patch, of the second head 0 does; head 2 gives nothing to patches.
ROWS = torch.tensor(
    [
        [[0.1, 0.1, 0.1, 0.1], [0.0, 0.0, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0]],
        [[0.0, 0.3, 0.0, 0.0], [0.2, 0.2, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],
    ],
    dtype=torch.float64,
)


def weights_of(name, **options):
    aggregator = make_aggregator(name, 3, **options)
    vector, weights = aggregator({"patch": PATCH, aggregator.reads[1]: ROWS})
    torch.testing.assert_close(vector, (weights[..., None] * PATCH).sum(1))
    return weights


@pytest.mark.parametrize("options", [{}, {"of": "joined"}])
@pytest.mark.parametrize("name", ["cls-attention", "central-attention"])
def test_mean_over_heads_renormalised(name, options):
    expected = torch.tensor([[1 / 6, 1 / 6, 1 / 2, 1 / 6], [2 / 7, 5 / 7, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(weights_of(name, **options), expected)


@pytest.mark.parametrize("name", ["cls-attention", "central-attention"])
def test_one_head_renormalised(name):
    expected = torch.tensor([[0, 0, 1, 0], [0.5, 0.5, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(weights_of(name, head=1), expected)
    with pytest.raises(BeyondClsError, match=r"head is 3, expected 0 to 2: attention/c.* has 3 attention heads"):
        weights_of(name, head=3)


@pytest.mark.parametrize("name", ["cls-attention", "central-attention"])
def test_all_heads_but_one(name):
    expected = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0, 1, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(weights_of(name, without=1), expected)
    with pytest.raises(BeyondClsError, match=r"without is 3, expected 0 to 2"):
        weights_of(name, without=3)
    with pytest.raises(BeyondClsError, match=r"head is 0 and without 1, expected one of them"):
        weights_of(name, head=0, without=1)


def test_head_of_lowest_entropy_of_each_image():
    weights = weights_of("lowest-entropy-head")
    assert weights.tolist() == [[0, 0, 1, 0], [0, 1, 0, 0]]
    assert weight_entropy(weights).tolist() == [0, 0]


def test_entropy_is_of_the_renormalised_row():
    rows = torch.tensor([[[0.001, 0.001, 0.0], [0.8, 0.1, 0.1]]], dtype=torch.float64)  # ln 2 and 0.639
    aggregator = make_aggregator("lowest-entropy-head", 3)
    weights = aggregator({"patch": PATCH[:1, :3], "attention/cls": rows}).weights
    torch.testing.assert_close(weights[0], torch.tensor([0.8, 0.1, 0.1], dtype=torch.float64))


def test_what_they_read():
    assert make_aggregator("central-attention", 3).reads == ("patch", "attention/centre")
    assert make_aggregator("cls-attention", 3, of="joined").reads == ("patch", "joined/attention/cls")


def test_maps_of_another_grid():
    with pytest.raises(BeyondClsError, match="attention/cls has 9 patches an image and the tokens 4; join feature sets of one"):
        make_aggregator("cls-attention", 3)({"patch": PATCH, "attention/cls": torch.rand(2, 3, 9)})
