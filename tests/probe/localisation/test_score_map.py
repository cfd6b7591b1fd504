import numpy as np
import pytest

from probe.localisation.boxes import centre_map, evaluation_map


def test_extremes_are_black_and_white():
    image = evaluation_map(np.random.default_rng(0).normal(size=(8, 8)), 32)
    assert (image.shape, image.dtype, image.min(), image.max()) == ((32, 32), np.uint8, 0, 255)


def test_values_are_cut_not_rounded():
    scores = np.array([[0.0, 0.999], [0.4999, 1.0]])  # of its own size: nothing to resize
    assert evaluation_map(scores, 2).tolist() == [[0, 254], [127, 255]]


def test_what_is_bright_stays_where_it_is():
    scores = np.zeros((4, 4))
    scores[1, 3] = 1
    bright = np.argwhere(evaluation_map(scores, 64) > 127)
    assert (bright.mean(0) // 16).tolist() == [1, 3]


@pytest.mark.parametrize("scores", [np.full((7, 7), 1 / 49), np.zeros((7, 7)), np.full((7, 7), np.nan)])
def test_a_map_without_information_is_black(scores):
    with np.errstate(all="raise"):
        assert not evaluation_map(scores, 30).any()


def test_half_precision_is_a_map_too():
    scores = np.random.default_rng(0).random((8, 8)).astype(np.float16)
    assert np.array_equal(evaluation_map(scores, 24), evaluation_map(scores.astype(np.float64), 24))


def test_the_given_map_is_left_as_it_is():
    scores = np.random.default_rng(0).random((8, 8))
    before = scores.copy()
    evaluation_map(scores, 8)
    assert np.array_equal(scores, before)


def test_centre_map_is_symmetric_about_the_centre():
    scores = centre_map(10, 10)
    assert np.allclose(scores, scores.T)
    assert np.allclose(scores, scores[::-1])
    assert scores.argmax() in (44, 45, 54, 55)
    assert np.allclose(centre_map(5, 15)[:, 1::3], centre_map(5, 5)), "as wide as the grid"


def test_a_grid_that_is_not_square_fills_the_frame():
    scores = np.zeros((2, 8))
    scores[1, 2] = 1
    row, column = divmod(int(evaluation_map(scores, 64).argmax()), 64)
    assert 32 <= row < 64
    assert 16 <= column < 24
