"""Closed forms and bad input of single aggregators."""

import numpy as np
import pytest
import torch

from extract.attention.attention import centre
from probe.aggregators import make_aggregator
from probe.head import Head
from store import BeyondClsError


def test_cls_average_is_both_side_by_side():
    features = {"cls": torch.randn(2, 3), "patch": torch.randn(2, 5, 3)}
    vector = make_aggregator("cls-average", 3)(features).vector
    torch.testing.assert_close(vector, torch.cat([features["cls"], features["patch"].mean(1)], 1))


def test_cls_of_several_blocks_beside_the_average_of_the_last():
    """DINOv2's linear evaluation; with `--vectors all` no patch token is read."""
    features = {f"cls/block{block}": torch.randn(2, 3) for block in (4, 5, 6)}
    features |= {"patch/block6": torch.randn(2, 5, 3)}
    features |= {"average/block6": features["patch/block6"].mean(1)}
    aggregator = make_aggregator("cls-average", 3, blocks=[4, 5, 6])
    expected = torch.cat([*(features[f"cls/block{block}"] for block in (4, 5, 6)), features["average/block6"]], 1)
    torch.testing.assert_close(aggregator(features).vector, expected)
    aggregator.use_vectors(lambda kind: True)
    assert aggregator.reads == ("cls/block4", "cls/block5", "cls/block6", "average/block6")
    assert torch.equal(aggregator(features).vector, expected)


def test_max_is_of_each_channel():
    vector, weights = make_aggregator("max", 2)({"patch": torch.tensor([[[1.0, -5], [-3, -2], [0, -7]]])})
    assert vector.tolist() == [[1, -2]]
    assert weights is None


@pytest.mark.parametrize(
    ("side", "k", "rows"),
    [
        (14, 1, [7]),
        (14, 2, [6, 7]),
        (14, 3, [6, 7, 8]),
        (14, 4, [5, 6, 7, 8]),
        (7, 1, [3]),
        (7, 2, [2, 3]),
        (7, 3, [2, 3, 4]),
        (7, 7, [0, 1, 2, 3, 4, 5, 6]),
        (16, 1, [8]),
        (16, 2, [7, 8]),
        (1, 1, [0]),
    ],
)
def test_central_averages_the_middle_of_the_grid(side, k, rows):
    where = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).float()
    vector, weights = make_aggregator("central", 2, k=k)({"patch": where.flatten(0, 1)[None]})
    assert vector.tolist() == [[pytest.approx(np.mean(rows))] * 2]
    inside = torch.zeros(side, side)
    inside[rows[0] : rows[-1] + 1, rows[0] : rows[-1] + 1] = 1 / len(rows) ** 2
    torch.testing.assert_close(weights[0].unflatten(0, (side, side)), inside)


@pytest.mark.parametrize("side", [1, 2, 7, 14, 16])
def test_the_central_patch_is_the_one_whose_attention_is_stored(side):
    weights = make_aggregator("central", 2)({"patch": torch.randn(1, side * side, 2)}).weights
    assert weights.argmax().item() == centre(side * side)


class TestTopK:
    WEIGHTS = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)

    def cut(self, k):
        return make_aggregator("norm", 2, top_k=k).cut(self.WEIGHTS)

    def test_keeps_the_largest_and_of_equal_ones_the_first(self):
        expected = [[0, 4 / 7, 0, 3 / 7], [0.5, 0.5, 0, 0]]
        torch.testing.assert_close(self.cut(2), torch.tensor(expected, dtype=torch.float64))
        assert self.cut(1).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]

    def test_of_many_equal_ones_the_first(self):
        aggregator = make_aggregator("norm", 2, top_k=300)
        assert aggregator.cut(torch.full((5, 1000), 1e-3)).nonzero()[:, 1].tolist() == list(range(300)) * 5

    def test_all_of_them_change_nothing(self):
        torch.testing.assert_close(self.cut(4), self.WEIGHTS)

    def test_no_more_than_there_are(self):
        with pytest.raises(BeyondClsError, match="top_k is 5, expected at most 4, the number of tokens"):
            make_aggregator("abmilp", 3, top_k=5)({"patch": torch.randn(1, 4, 3)})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cls", {"depth": 2}, "unknown option of aggregator 'cls' 'depth'"),
        ("abmilp", {"dept": 2}, "unknown option of aggregator 'abmilp' 'dept'; did you mean 'depth'"),
        ("abmilp", {"depth": 0}, "AbMILP depth is 0, expected 1"),
        ("abmilp", {"depth": "2"}, "AbMILP depth is '2', expected 1"),
        ("abmilp", {"branches": True}, "branches is True, expected 1"),
        ("abmilp", {"depth": 2, "activation": "rleu"}, "unknown activation 'rleu'; did you mean 'relu'"),
        ("abmilp", {"tokens": "al"}, "unknown bag of tokens 'al'; did you mean 'all'"),
        ("abmilp", {"combine": "avrage"}, "did you mean 'average'"),
        ("abmilp", {"position": "sincos"}, "unknown position 'sincos'; did you mean 'sin-cos'"),
        ("abmilp", {"position": "sin-cos"}, "n_patches is unknown, expected the number of patches"),
        ("abmilp", {"position": "sin-cos", "n_patches": 15}, "there are 15 patches, expected a square grid"),
        ("abmilp", {"blocks": []}, r"blocks is \[\], expected a list of different whole numbers"),
        ("abmilp", {"blocks": 3}, "blocks is 3, expected a list"),
        ("abmilp", {"blocks": [3, 3]}, r"blocks is \[3, 3\], expected"),
        ("abmilp", {"blocks": [3, -1]}, "one of blocks is -1, expected 0 or more"),
        ("abmilp", {"top_k": 0}, "top_k is 0, expected 1"),
        ("sa-abmilp", {"apply_to": "none"}, "unknown use of self-attention 'none'"),
        ("ap", {"heads": 5}, "heads is 5, expected a divisor of the width of the tokens, 12; 4 is one"),
        ("ap", {"norm": "layer"}, "norm is 'layer', expected true or false"),
        ("ep", {"queries": 5}, "queries is 5 and divide 1, expected queries · divide to divide the width of the tokens, 12"),
        ("ap", {"form": "ami"}, "unknown form of attentive probing 'ami'; did you mean 'aim'"),
        ("ep", {"queries": 4, "tokens": "al"}, "unknown bag of tokens 'al'; did you mean 'all'"),
        ("cls-attention", {"head": -1}, "head is -1, expected 0 or more"),
        ("lowest-entropy-head", {"head": 1}, "unknown option of aggregator 'lowest-entropy-head' 'head'"),
        ("v-jepa", {"heads": 3, "ratio": 0}, "ratio is 0, expected 1"),
        ("cls-attention", {"of": "dino"}, "unknown source of attention 'dino'"),
        ("central", {"k": 0}, "k is 0, expected 1"),
        ("norm", {"largest": "no"}, "largest is 'no', expected true or false"),
        ("k-means", {"clusters": 1}, "clusters is 1, expected 2 or more"),
        ("k-means", {"steps": 0}, "steps is 0, expected 1 or more"),
        ("pca", {"top_k": 3}, "top_k is 3, but 'pca' has no weights to select by"),
        ("k-means", {"top_k": 3}, "top_k is 3, but 'k-means' has no weights to select by"),
        ("ap", {"form": "aim", "norm": True}, "norm is true, expected false: form='aim' normalises the tokens"),
        ("ap", {"form": "cae", "norm": True}, "norm is true, expected false: form='cae' normalises the tokens"),
        ("abmlip", {}, "unknown aggregator 'abmlip'; did you mean 'abmilp'"),
        ("average", {"top_k": 3}, r"top_k is 3, but 'average' has no weights to select by, expected.* abmilp, ap"),
    ],
)
def test_options_that_an_aggregator_does_not_take(name, options, message):
    with pytest.raises(BeyondClsError, match=message):
        make_aggregator(name, 12, **options)


def test_widths_that_sine_cosine_codes_do_not_fit():
    with pytest.raises(BeyondClsError, match="tokens are 10 wide, expected a multiple of 4"):
        make_aggregator("abmilp", 10, 16, position="sin-cos")


@pytest.mark.parametrize(("n", "message"), [(8, "there are 8 patches, expected a square"), (4, "k is 3, expected at most 2")])
def test_grids_that_have_no_such_centre(n, message):
    with pytest.raises(BeyondClsError, match=message):
        make_aggregator("central", 2, k=3)({"patch": torch.randn(1, n, 2)})


def test_head_normalises_as_the_official_one():
    head = Head(make_aggregator("cls-average", 6), 4)
    assert (head.norm.eps, head.norm.affine) == (1e-6, False)
    cls, patch = torch.randn(64, 6) * 50 + 7, torch.randn(64, 9, 6)
    logits, _ = head({"cls": cls, "patch": patch})
    x = torch.cat([cls, patch.mean(1)], 1)
    standardised = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-6).sqrt()
    torch.testing.assert_close(logits, standardised @ head.classifier.weight.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["average", "max", "cls-average", "central", "cls-attention"])
def test_without_parameters_many_members_share_one_result(name):
    features = {"patch": torch.randn(2, 9, 4), "cls": torch.randn(2, 4), "attention/cls": torch.rand(2, 3, 9)}
    vector, _ = make_aggregator(name, 4).pool_many({}, features, n_members=1000)
    assert len(vector) == 1000
    assert vector.stride(0) == 0  # a view: nothing is copied
