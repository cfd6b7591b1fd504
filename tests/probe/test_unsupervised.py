"""Selections from an image's own tokens and from stored attention maps, by hand and against other implementations."""

import pytest
import torch
from sklearn.cluster import KMeans as Lloyd

from probe.aggregators import make_aggregator
from probe.aggregators.unsupervised import farthest
from probe.metrics import weight_entropy
from store import BeyondClsError


def weights_of(name, tokens, **options):
    pooled = make_aggregator(name, tokens.shape[-1], tokens.shape[1], **options)({"patch": tokens})
    torch.testing.assert_close(pooled.vector, (pooled.weights[..., None] * tokens).sum(1))
    return pooled.weights


def of_length(*lengths):
    """One image whose tokens have these norms, each in a direction of its own."""
    return torch.diag(torch.tensor(lengths, dtype=torch.float64))[None]


def images(side=6, dim=8, n=20, seed=0):
    """Noise, and on a patch of 3 x 2 that lies anywhere inside something that is added."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(n, side, side, dim, generator=generator, dtype=torch.float64) * 0.1
    where = torch.zeros(n, side, side, dtype=torch.bool)
    for i in range(n):
        top, left = (int(torch.randint(1, side - size, (1,), generator=generator)) for size in (3, 2))
        where[i, top : top + 3, left : left + 2] = True
    tokens[where] += torch.randn(dim, generator=generator, dtype=torch.float64)
    return tokens.flatten(1, 2) + 5, where.flatten(1)


class TestNorm:
    def test_is_proportional_to_the_length(self):
        assert weights_of("norm", of_length(1, 2, 5, 0)).tolist() == [[0.125, 0.25, 0.625, 0]]
        assert weights_of("norm", of_length(1, 2, 5, 0), top_k=1).tolist() == [[0, 0, 1, 0]]
        assert weights_of("norm", of_length(1, 3, 5, 0), top_k=2).tolist() == [[0, 0.375, pytest.approx(0.625), 0]]

    def test_or_to_its_inverse(self):
        expected = torch.tensor([[4, 2, 1]], dtype=torch.float64) / 7
        torch.testing.assert_close(weights_of("norm", of_length(1, 2, 4), largest=False), expected)
        torch.testing.assert_close(
            weights_of("norm", of_length(2, 1, 4), largest=False, top_k=1), torch.eye(3)[None, 1].double()
        )

    def test_tokens_that_are_0(self):
        assert weights_of("norm", of_length(0, 2, 0, 1), largest=False).tolist() == [[0.5, 0, 0.5, 0]]
        for largest in (True, False):
            assert weights_of("norm", of_length(0, 0, 0, 0), largest=largest).tolist() == [[0.25] * 4]


class TestForeground:
    @pytest.mark.parametrize("name", ["pca", "k-means"])
    def test_finds_what_lies_inside(self, name):
        tokens, where = images()
        assert torch.equal(weights_of(name, tokens) > 0, where)
        assert torch.equal(weights_of(name, tokens)[where], torch.full((20 * 6,), 1 / 6, dtype=torch.float64))

    @pytest.mark.parametrize("name", ["pca", "k-means"])
    def test_whatever_it_looks_like(self, name):
        tokens, where = images()
        turned = 2 * tokens.mean(1, keepdim=True) - tokens
        assert torch.equal(weights_of(name, turned) > 0, where)
        assert torch.equal(weights_of(name, tokens * 1e6 - 1e7) > 0, where)

    @pytest.mark.parametrize("name", ["pca", "k-means"])
    def test_turns_with_the_picture(self, name):
        tokens = torch.randn(5, 7, 7, 4, generator=torch.Generator().manual_seed(1))
        upright = weights_of(name, tokens.flatten(1, 2)).unflatten(1, (7, 7))
        assert upright.count_nonzero() > 0
        assert not torch.equal(upright, upright.mT)
        assert torch.equal(weights_of(name, tokens.transpose(1, 2).flatten(1, 2)).unflatten(1, (7, 7)), upright.mT)
        assert torch.equal(weights_of(name, tokens.flip(2).flatten(1, 2)).unflatten(1, (7, 7)), upright.flip(2))

    @pytest.mark.parametrize("name", ["pca", "k-means"])
    def test_where_all_tokens_are_the_same_all_are_chosen(self, name):
        assert torch.equal(weights_of(name, torch.full((2, 9, 3), 0.5)), torch.full((2, 9), 1 / 9))

    @pytest.mark.parametrize("name", ["pca", "k-means"])
    @pytest.mark.parametrize("n", [1, 4, 8])
    def test_grids_whose_inside_is_not_known(self, name, n):
        with pytest.raises(BeyondClsError, match=f"there are {n} patches, expected a square grid of 3 x 3 or more"):
            make_aggregator(name, 4)({"patch": torch.randn(2, n, 4)})


class TestPCA:
    @pytest.mark.parametrize("dim", [4, 40])
    def test_is_the_positive_side_of_the_first_component(self, dim):
        tokens = torch.randn(30, 25, dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 3
        centred = tokens - tokens.mean(1, keepdim=True)
        along = torch.linalg.svd(centred).U[..., 0]
        grid = along.unflatten(1, (5, 5))
        inside = grid[:, 1:-1, 1:-1].sum((1, 2))  # the border has the other sign, as all of them sum to 0
        assert torch.equal(weights_of("pca", tokens) > 0, along * inside.sign()[:, None] > 0)


class TestKMeans:
    @pytest.mark.parametrize(("k", "steps"), [(2, 20), (2, 1), (3, 20), (5, 2)])
    def test_clusters_are_those_of_another_implementation(self, k, steps):
        tokens = torch.randn(20, 25, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 3
        ours = make_aggregator("k-means", 4, clusters=k, steps=steps).assigned(tokens)
        centred = tokens - tokens.mean(1, keepdim=True)
        for image, start, assigned in zip(centred, farthest(centred @ centred.mT, k), ours, strict=True):
            theirs = Lloyd(k, init=(start.mT @ image).numpy(), n_init=1, max_iter=steps, tol=0, algorithm="lloyd")
            labels = theirs.fit(image.numpy()).predict(image.numpy())
            assert assigned.tolist() == labels.tolist()

    def test_starts_from_tokens_that_are_far_apart(self):
        x = torch.tensor([[[0.0, 1], [3, 0], [-2, 0], [0, -2.5]]])
        start = farthest(x @ x.mT, 3)
        assert start.argmax(1).tolist() == [[1, 2, 3]]  # 5² from the first; then 2.5² + 2² from the nearer one
        assert start.sum(1).tolist() == [[1, 1, 1]]

    def test_chooses_the_cluster_with_the_smallest_share_on_the_border(self):
        # 0: border, and 2 inside; 9: 3 inside and 1 outside; -9: 4 inside, and 2 outside
        grid = torch.tensor(
            [[0, 0, 0, 0, -9], [9, 9, -9, -9, -9], [0, 9, -9, -9, 0], [0, 9, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.float64
        )
        weights = weights_of("k-means", grid.flatten()[None, :, None], clusters=3)
        assert torch.equal(weights[0].unflatten(0, (5, 5)) > 0, grid == 9)

    def test_of_equal_shares_the_larger(self):
        grid = torch.zeros(5, 5, dtype=torch.float64)
        grid[1, 1], grid[3, 2:4] = 9, -8
        weights = weights_of("k-means", grid.flatten()[None, :, None], clusters=3)
        assert torch.equal(weights[0].unflatten(0, (5, 5)) > 0, grid == -8)

    def test_a_cluster_without_tokens_is_not_chosen(self):
        grid = torch.ones(5, 5, dtype=torch.float64)
        grid[0], grid[:, 0], grid[4, 1:3] = 0, 0, 0  # ones: 5 of 14 on the border, zeros: 11 of 11, and farther from the mean
        weights = weights_of("k-means", grid.flatten()[None, :, None], clusters=4)
        assert torch.equal(weights[0].unflatten(0, (5, 5)) > 0, grid == 1)

    def test_no_more_clusters_than_patches(self):
        with pytest.raises(BeyondClsError, match="clusters is 10, expected at most 9, the number of patches"):
            make_aggregator("k-means", 4, clusters=10)({"patch": torch.randn(2, 9, 4)})


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


def attention_weights(name, **options):
    aggregator = make_aggregator(name, 3, **options)
    vector, weights = aggregator({"patch": PATCH, aggregator.reads[1]: ROWS})
    torch.testing.assert_close(vector, (weights[..., None] * PATCH).sum(1))
    return weights


@pytest.mark.parametrize("options", [{}, {"of": "joined"}])
@pytest.mark.parametrize("name", ["cls-attention", "central-attention"])
def test_mean_over_heads_renormalised(name, options):
    expected = torch.tensor([[1 / 6, 1 / 6, 1 / 2, 1 / 6], [2 / 7, 5 / 7, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(attention_weights(name, **options), expected)


@pytest.mark.parametrize("name", ["cls-attention", "central-attention"])
@pytest.mark.parametrize(
    ("option", "expected"),
    [("head", [[0, 0, 1, 0], [0.5, 0.5, 0, 0]]), ("without", [[0.25, 0.25, 0.25, 0.25], [0, 1, 0, 0]])],
)
def test_one_head_or_all_but_one_renormalised(option, expected, name):
    torch.testing.assert_close(attention_weights(name, **{option: 1}), torch.tensor(expected, dtype=torch.float64))
    with pytest.raises(BeyondClsError, match=f"{option} is 3, expected 0 to 2"):
        attention_weights(name, **{option: 3})
    with pytest.raises(BeyondClsError, match=r"head is 0 and without 1, expected one of them"):
        attention_weights(name, head=0, without=1)


def test_head_of_lowest_entropy_of_each_image():
    weights = attention_weights("lowest-entropy-head")
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
