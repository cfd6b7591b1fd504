"""Divergence between weights, by hand."""

import math

import numpy as np
import pytest

from probe.divergence import Divergence, distributions, kl_divergence
from store import BeyondClsError

UNIFORM = np.full((3, 4), 0.25)
ONE_HOT = np.eye(4)[[0, 2, 3]]


def test_the_same_weights_do_not_diverge():
    rows = distributions(np.random.default_rng(0).random((50, 196)), "x")
    assert kl_divergence(rows, rows) == Divergence(0.0, 0.0, 50, 0)
    assert kl_divergence(ONE_HOT, ONE_HOT) == Divergence(0.0, 0.0, 3, 0)


def test_never_below_0():
    rows = np.random.default_rng(1).random((2000, 9)) + 1e-3
    nearly = distributions(rows * (1 + 1e-16 * np.arange(9)) + 1e-17, "nearly")
    each = [kl_divergence(distributions(rows, "x")[i : i + 1], nearly[i : i + 1]).mean for i in range(2000)]
    assert min(each) >= 0


def test_uniform_and_one_hot():
    assert kl_divergence(UNIFORM, ONE_HOT) == Divergence(None, None, 3, 3)
    one_way = kl_divergence(ONE_HOT, UNIFORM)
    assert one_way == Divergence(pytest.approx(math.log(4)), pytest.approx(0), 3, 0)


def test_two_patches_by_hand():
    p, q = np.array([[0.5, 0.5]]), np.array([[0.9, 0.1]])
    # ½ ln(0.5 / 0.9) + ½ ln(0.5 / 0.1) = ½ ln(0.25 / 0.09) = ln(5 / 3); 0.9 ln 1.8 + 0.1 ln 0.2
    assert kl_divergence(p, q).mean == pytest.approx(math.log(5 / 3))
    assert kl_divergence(q, p).mean == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))


def test_images_of_infinite_divergence_are_counted_and_left_out():
    p = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    q = np.array([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    mean, std = 2 / 3 * math.log(2), math.sqrt(2) / 3 * math.log(2)
    assert kl_divergence(p, q) == Divergence(pytest.approx(mean), pytest.approx(std), 4, 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_sum_to_1_in_double_precision(dtype):
    rounded = np.random.default_rng(2).random((20, 196)).astype(dtype)
    rows = distributions(rounded, "x")
    assert rows.dtype == np.float64
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-15)
    np.testing.assert_allclose(rows[3] / rows[3, 0], rounded[3].astype(np.float64) / float(rounded[3, 0]), rtol=1e-14)


def test_weights_given_are_left_as_they_are():
    given = np.array([[1.0, 3.0]])
    assert distributions(given, "x").tolist() == [[0.25, 0.75]]
    assert given.tolist() == [[1, 3]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[0.5, 0.5], [np.nan, 1.0]], r"weights of pool have nan among them in row 1 \(1 of 2 rows\)"),
        ([[0.5, 0.5], [-0.25, 1.25]], r"weights of pool have -0.25 among them in row 1"),
        ([[np.inf, 0.5], [1.0, 0.0]], r"weights of pool have inf among them in row 0"),
        ([[0.0, 0.0], [0.0, 0.0]], r"weights of pool have a sum of 0 in row 0 \(2 of 2 rows\).* leave this head out"),
        ([0.5, 0.5], r"weights of pool are float64 of shape \[2\], expected floats \[N, T\]"),
        (np.zeros((0, 4)), r"weights of pool are float64 of shape \[0, 4\], expected"),
        ([[1, 0]], r"weights of pool are int64 of shape \[1, 2\], expected floats"),
    ],
)
def test_what_is_no_distribution(weights, message):
    with pytest.raises(BeyondClsError, match=message):
        distributions(np.asarray(weights), "pool")
