"""Aggregators without trained weights by hand and against other implementations, and options that none takes."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans as Lloyd

from extract.attention.attention import centre
from probe.aggregators import make_aggregator
from probe.aggregators.unsupervised import farthest
from store import BeyondClsError


def test_cls_beside_the_average():
    """Of several blocks as in DINOv2's linear evaluation; with `--vectors all` no patch token is read."""
    features = {f"cls/block{block}": torch.randn(2, 3) for block in (4, 5, 6)}
    features |= {"patch/block6": torch.randn(2, 5, 3), "cls": torch.randn(2, 3), "patch": torch.randn(2, 5, 3)}
    features |= {"average/block6": features["patch/block6"].mean(1)}
    expected = torch.cat([features["cls"], features["patch"].mean(1)], 1)
    torch.testing.assert_close(make_aggregator("cls-average", 3)(features).vector, expected)
    aggregator = make_aggregator("cls-average", 3, blocks=[4, 5, 6])
    expected = torch.cat([*(features[f"cls/block{block}"] for block in (4, 5, 6)), features["average/block6"]], 1)
    torch.testing.assert_close(aggregator(features).vector, expected)
    aggregator.use_vectors(lambda kind: True)
    assert aggregator.reads == ("cls/block4", "cls/block5", "cls/block6", "average/block6")
    assert torch.equal(aggregator(features).vector, expected)


def test_max_is_of_each_channel():
    vector, _ = make_aggregator("max", 2)({"patch": torch.tensor([[[1.0, -5], [-3, -2], [0, -7]]])})
    assert vector.tolist() == [[1, -2]]


@pytest.mark.parametrize(
    ("side", "k", "rows"), [(14, 1, [7]), (14, 3, [6, 7, 8]), (7, 2, [2, 3]), (7, 7, [*range(7)]), (1, 1, [0])]
)
def test_central_averages_the_middle_of_the_grid(side, k, rows):
    where = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).float()
    vector, weights = make_aggregator("central", 2, k=k)({"patch": where.flatten(0, 1)[None]})
    assert vector.tolist() == [[pytest.approx(np.mean(rows))] * 2]
    inside = torch.zeros(side, side)
    inside[rows[0] : rows[-1] + 1, rows[0] : rows[-1] + 1] = 1 / len(rows) ** 2
    torch.testing.assert_close(weights[0].unflatten(0, (side, side)), inside)
    if k == 1:  # the patch whose attention is stored
        assert weights.argmax().item() == centre(side * side)


@pytest.mark.parametrize(
    ("k", "expected"), [(2, [[0, 4 / 7, 0, 3 / 7], [0.5, 0.5, 0, 0]]), (1, [[0, 1, 0, 0], [1, 0, 0, 0]]), (4, None)]
)
def test_top_k_keeps_the_largest_and_of_equal_ones_the_first(k, expected):
    weights = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    kept = make_aggregator("norm", 2, top_k=k).cut(weights)
    torch.testing.assert_close(kept, weights if expected is None else torch.tensor(expected, dtype=torch.float64))
    many = make_aggregator("norm", 2, top_k=300 * k).cut(torch.full((5, 1500), 1e-3))
    assert many.nonzero()[:, 1].tolist() == list(range(300 * k)) * 5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("abmlip", {}, "mean 'abmilp'"),
        ("abmilp", {"dept": 2}, "option .* mean 'depth'"),
        ("abmilp", {"depth": 0}, "depth is 0, expected 1"),
        ("abmilp", {"branches": True}, "branches is True, expected 1"),
        ("abmilp", {"depth": 2, "activation": "rleu"}, "mean 'relu'"),
        ("abmilp", {"tokens": "al"}, "mean 'all'"),
        ("abmilp", {"combine": "avrage"}, "mean 'average'"),
        ("abmilp", {"position": "sincos"}, "mean 'sin-cos'"),
        ("abmilp", {"position": "sin-cos"}, "n_patches is unknown"),
        ("abmilp", {"position": "sin-cos", "n_patches": 15}, "15 patches, expected a square"),
        ("abmilp", {"position": "sin-cos", "n_patches": 16, "dim": 10}, "10 wide, expected a multiple of 4"),
        ("abmilp", {"blocks": 3}, "blocks is 3, expected a list"),
        ("abmilp", {"blocks": [3, -1]}, "blocks is -1, expected 0"),
        *(("average", {"blocks": blocks}, "expected a list of different whole numbers") for blocks in ([0, 0], [])),
        ("abmilp", {"top_k": 0}, "top_k is 0, expected 1"),
        ("sa-abmilp", {"apply_to": "none"}, "self-attention 'none'"),
        ("ap", {"heads": 5}, "heads is 5, expected a divisor .* 12; 4 is one"),
        ("ap", {"form": "ami"}, "mean 'aim'"),
        ("ap", {"form": "aim", "norm": True}, "norm is true, expected false"),
        ("ep", {"queries": 5}, "queries is 5 and divide 1, expected .* 12"),
        ("v-jepa", {"heads": 3, "ratio": 0}, "ratio is 0, expected 1"),
        ("cls-attention", {"head": -1}, "head is -1, expected 0"),
        ("cls-attention", {"of": "dino"}, "attention 'dino'"),
        ("cls-attention", {"head": 0, "without": 1}, "head is 0 and without 1, expected one"),
        ("central", {"k": 0}, "k is 0, expected 1"),
        ("norm", {"largest": "no"}, "largest is 'no', expected true or false"),
        ("k-means", {"clusters": 1}, "clusters is 1, expected 2"),
        ("pca", {"top_k": 3}, "top_k is 3, but 'pca' has no weights"),
        ("average", {"top_k": 3}, "top_k is 3, but 'average' .* expected.* abmilp, ap"),
    ],
)
def test_options_that_an_aggregator_does_not_take(name, options, message):
    with pytest.raises(BeyondClsError, match=message):
        make_aggregator(name, **{"dim": 12, **options})


@pytest.mark.parametrize(
    ("name", "options", "n_patches", "message"),
    [
        ("abmilp", {"top_k": 5}, 4, "top_k is 5, expected at most 4"),
        ("central", {"k": 3}, 8, "8 patches, expected a square"),
        ("central", {"k": 3}, 4, "k is 3, expected at most 2"),
        *((name, {}, n, f"{n} patches, expected a square grid of 3 x 3") for name in ("pca", "k-means") for n in (1, 4, 8)),
        ("k-means", {"clusters": 10}, 9, "clusters is 10, expected at most 9"),
        ("cls-attention", {}, 4, "attention/cls has 9 patches .* tokens 4"),
        ("cls-attention", {"head": 3}, 9, "head is 3, expected 0 to 2"),
        ("central-attention", {"without": 3}, 9, "without is 3, expected 0 to 2"),
    ],
)
def test_tokens_that_it_does_not_take(name, options, n_patches, message):
    features = {
        "patch": torch.randn(2, n_patches, 4),
        **dict.fromkeys(("attention/cls", "attention/centre"), torch.rand(2, 3, 9)),
    }
    with pytest.raises(BeyondClsError, match=message):
        make_aggregator(name, 4, **options)(features)


def test_without_parameters_many_members_share_one_result():
    vector, _ = make_aggregator("average", 4).pool_many({}, {"patch": torch.randn(2, 9, 4)}, n_members=1000)
    assert (len(vector), vector.stride(0)) == (1000, 0)  # a view: nothing is copied


def weights_of(name, tokens, **options):
    pooled = make_aggregator(name, tokens.shape[-1], tokens.shape[1], **options)({"patch": tokens})
    torch.testing.assert_close(pooled.vector, (pooled.weights[..., None] * tokens).sum(1))
    return pooled.weights


@pytest.mark.parametrize(
    ("lengths", "options", "expected"),
    [
        ((1, 2, 5, 0), {}, [0.125, 0.25, 0.625, 0]),
        ((1, 2, 5, 0), {"top_k": 1}, [0, 0, 1, 0]),
        ((1, 3, 5, 0), {"top_k": 2}, [0, 0.375, 0.625, 0]),
        ((1, 2, 4, 4), {"largest": False}, [0.5, 0.25, 0.125, 0.125]),
        ((2, 1, 4, 4), {"largest": False, "top_k": 1}, [0, 1, 0, 0]),
        ((0, 2, 0, 1), {"largest": False}, [0.5, 0, 0.5, 0]),
        *(((0, 0, 0, 0), {"largest": largest}, [0.25] * 4) for largest in (True, False)),
    ],
)
def test_norms_are_lengths_or_their_inverses(lengths, options, expected):
    tokens = torch.diag(torch.tensor(lengths, dtype=torch.float64))[None]
    torch.testing.assert_close(weights_of("norm", tokens, **options), torch.tensor([expected], dtype=torch.float64))


@pytest.mark.parametrize("name", ["pca", "k-means"])
class TestForeground:
    def test_is_what_lies_inside_whatever_it_looks_like(self, name):
        """Noise, and on a patch of 3 x 2 that lies anywhere inside something that is added."""
        generator, (n, side, dim) = torch.Generator().manual_seed(0), (20, 6, 8)
        tokens = torch.randn(n, side, side, dim, generator=generator, dtype=torch.float64) * 0.1
        where = torch.zeros(n, side, side, dtype=torch.bool)
        for i in range(n):
            top, left = (int(torch.randint(1, side - size, (1,), generator=generator)) for size in (3, 2))
            where[i, top : top + 3, left : left + 2] = True
        tokens[where] += torch.randn(dim, generator=generator, dtype=torch.float64)
        tokens, where = tokens.flatten(1, 2) + 5, where.flatten(1)
        expected = where / where.sum(1, keepdim=True, dtype=torch.float64)
        for shown in (tokens, 2 * tokens.mean(1, keepdim=True) - tokens, tokens * 1e6 - 1e7):
            torch.testing.assert_close(weights_of(name, shown), expected)

    def test_where_all_tokens_are_the_same_all_are_chosen(self, name):
        assert torch.equal(weights_of(name, torch.full((2, 9, 3), 0.5)), torch.full((2, 9), 1 / 9))


@pytest.mark.parametrize("dim", [4, 40])
def test_pca_is_the_positive_side_of_the_first_component(dim):
    tokens = torch.randn(30, 25, dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 3
    along = torch.linalg.svd(tokens - tokens.mean(1, keepdim=True)).U[..., 0]
    inside = along.unflatten(1, (5, 5))[:, 1:-1, 1:-1].sum((1, 2))  # the border has the other sign, as all of them sum to 0
    assert torch.equal(weights_of("pca", tokens) > 0, along * inside.sign()[:, None] > 0)


@pytest.mark.parametrize(("k", "steps"), [(2, 20), (2, 1), (3, 20), (5, 2)])
def test_clusters_are_those_of_another_implementation(k, steps):
    tokens = torch.randn(20, 25, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 3
    ours = make_aggregator("k-means", 4, clusters=k, steps=steps).assigned(tokens)
    centred = tokens - tokens.mean(1, keepdim=True)
    for image, start, assigned in zip(centred, farthest(centred @ centred.mT, k), ours, strict=True):
        theirs = Lloyd(k, init=(start.mT @ image).numpy(), n_init=1, max_iter=steps, tol=0, algorithm="lloyd")
        assert assigned.tolist() == theirs.fit(image.numpy()).predict(image.numpy()).tolist()


def test_clusters_start_from_tokens_that_are_far_apart():
    x = torch.tensor([[[0.0, 1], [3, 0], [-2, 0], [0, -2.5]]])
    expected = torch.tensor([[1, 2, 3]])  # 5² from the first; then 2.5² + 2² from the nearer one
    assert torch.equal(farthest(x @ x.mT, 3), torch.nn.functional.one_hot(expected, 4).mT.float())


@pytest.mark.parametrize(
    ("grid", "clusters", "chosen"),
    [
        # The smallest share on the border. 0: border, and 2 inside; 9: 3 inside and 1 outside; -9: 4 inside, and 2 outside.
        ([[0, 0, 0, 0, -9], [9, 9, -9, -9, -9], [0, 9, -9, -9, 0], [0, 9, 0, 0, 0], [0] * 5], 3, 9),
        # Of equal shares the larger.
        ([[0] * 5, [0, 9, 0, 0, 0], [0] * 5, [0, 0, -8, -8, 0], [0] * 5], 3, -8),
        # Not one without tokens. Ones: 5 of 14 on the border, zeros: 11 of 11, and farther from the mean.
        ([[0] * 5, [0, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 1, 1]], 4, 1),
    ],
    ids=["smallest share", "larger", "without tokens"],
)
def test_the_cluster_that_is_chosen(grid, clusters, chosen):
    grid = torch.tensor(grid, dtype=torch.float64)
    weights = weights_of("k-means", grid.flatten()[None, :, None], clusters=clusters)
    assert torch.equal(weights[0].unflatten(0, (5, 5)) > 0, grid == chosen)


# Of the first image head 1 looks at one patch, of the second head 0 does; head 2 gives nothing to patches.
MAPS = [
    [[0.1, 0.1, 0.1, 0.1], [0.0, 0.0, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0]],
    [[0.0, 0.3, 0.0, 0.0], [0.2, 0.2, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],
]
ALL = [[1 / 6, 1 / 6, 1 / 2, 1 / 6], [2 / 7, 5 / 7, 0, 0]]
LOWEST = [[0.001, 0.001, 0.0, 0.0], [0.8, 0.1, 0.1, 0.0]]  # of which the second has the lower entropy once it is renormalised


@pytest.mark.parametrize(
    ("name", "options", "reads", "maps", "expected"),
    [
        ("cls-attention", {}, "attention/cls", MAPS, ALL),
        ("central-attention", {}, "attention/centre", MAPS, ALL),
        ("cls-attention", {"of": "joined"}, "joined/attention/cls", MAPS, ALL),
        ("cls-attention", {"head": 1}, "attention/cls", MAPS, [[0, 0, 1, 0], [0.5, 0.5, 0, 0]]),
        ("central-attention", {"without": 1}, "attention/centre", MAPS, [[0.25] * 4, [0, 1, 0, 0]]),
        ("lowest-entropy-head", {}, "attention/cls", MAPS, [[0, 0, 1, 0], [0, 1, 0, 0]]),
        ("lowest-entropy-head", {}, "attention/cls", [LOWEST, LOWEST], [LOWEST[1]] * 2),
    ],
)
def test_stored_attention_is_renormalised(name, options, reads, maps, expected):
    aggregator, patch = make_aggregator(name, 3, **options), torch.randn(2, 4, 3, dtype=torch.float64)
    assert aggregator.reads == ("patch", reads)
    vector, weights = aggregator({"patch": patch, reads: torch.tensor(maps, dtype=torch.float64)})
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(vector, (weights[..., None] * patch).sum(1))
