"""Score maps to threshold, boxes around their contours, and true boxes as views show them."""

import cv2
import numpy as np
import pytest

from probe.localisation.boxes import candidates, centre_map, evaluation_map, into_view, iou


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


def test_half_precision_is_a_map_too_and_stays_as_it_is():
    scores = np.random.default_rng(0).random((8, 8)).astype(np.float16)
    before = scores.copy()
    assert np.array_equal(evaluation_map(scores, 24), evaluation_map(scores.astype(np.float64), 24))
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


SIZE = 20
# Rectangles x0, y0, x1, y1 (corners belong to them), each of a value, one over the other.
PICTURES = {
    "a rectangle": [(3, 4, 9, 12, 255)],
    "at the last pixel": [(10, 12, 19, 19, 255)],
    "a hole": [(2, 2, 16, 16, 255), (5, 5, 12, 12, 0)],
    "an island in a hole": [(1, 1, 18, 18, 255), (4, 4, 15, 15, 0), (8, 8, 10, 10, 255)],
    "diagonal pixels": [(4, 4, 4, 4, 255), (5, 5, 5, 5, 255)],
    "a bay open to the border": [(0, 0, 19, 19, 255), (0, 8, 5, 11, 0)],
    "two levels": [(0, 0, 9, 9, 100), (12, 12, 15, 15, 255)],
    "a thin cross with the larger box": [(0, 9, 10, 9, 255), (5, 4, 5, 14, 255), (12, 5, 19, 12, 255)],
}


def drawn(name):
    image = np.zeros((SIZE, SIZE), np.uint8)
    for x0, y0, x1, y1, value in PICTURES.get(name, ()):
        image[y0 : y1 + 1, x0 : x1 + 1] = value
    return image if name in PICTURES else np.random.default_rng(0).integers(0, 256, (SIZE, SIZE)).astype(np.uint8)


@pytest.mark.parametrize("name", [*PICTURES, "noise"])
def test_boxes_of_every_level_are_opencvs(name):
    image = drawn(name)
    boxes_found = candidates(image)
    ends = [*boxes_found.starts[1:], len(boxes_found.boxes)]
    for level in range(int(image.max())):
        contours = cv2.findContours((image > level).astype(np.uint8), cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[0]
        expected = [[x, y, min(x + w, SIZE - 1), min(y + h, SIZE - 1)] for x, y, w, h in map(cv2.boundingRect, contours)]
        part = boxes_found.of_level[level]
        assert sorted(boxes_found.boxes[boxes_found.starts[part] : ends[part]].tolist()) == sorted(expected)
        largest = expected[max(range(len(contours)), key=lambda i, contours=contours: cv2.contourArea(contours[i]))]
        assert boxes_found.boxes[boxes_found.largest[part]].tolist() == largest


def test_by_hand():
    """The border of a hole runs over bright pixels; x1 is one past the last pixel, or the last of the picture."""
    nested = candidates(drawn("an island in a hole"))
    assert sorted(nested.boxes.tolist())[1:] == [[1, 1, 19, 19], [3, 3, 17, 17], [8, 8, 11, 11]]


def test_nothing_bright_gives_one_empty_box():
    boxes_found = candidates(np.zeros((SIZE, SIZE), np.uint8))
    assert boxes_found.boxes.tolist() == [[0, 0, 0, 0]]
    assert set(boxes_found.of_level.tolist()) == {0}


def shown(boxes, crop=(0, 0, 100, 50), flip=False, size=200):
    return into_view(np.array(boxes, np.float32), np.array(crop, np.float32), flip, size)


def test_a_whole_image_is_squeezed_into_the_frame():
    in_view = shown([[10, 5, 60, 25], [0, 0, 100, 50]])
    assert in_view.boxes.tolist() == [[20, 20, 120, 100], [0, 0, 200, 200]]
    assert (in_view.n_outside, in_view.n_cut) == (0, 0)


@pytest.mark.parametrize(
    ("box", "view", "expected"),
    [
        ([1.3, 1.4, 7.9, 7.9], {"crop": (0, 0, 10, 10), "size": 10}, [1, 1, 7, 7]),
        ([30, 20, 50, 40], {"crop": (20, 10, 60, 50), "size": 80}, [20, 20, 60, 60]),
        ([10, 5, 60, 25], {"flip": True}, [80, 20, 180, 100]),
        ([0, 0, 100, 50], {"crop": (0, -25, 100, 75)}, [0, 50, 200, 150]),
    ],
    ids=["whole numbers", "a crop", "mirrored", "padded"],
)
def test_boxes_are_where_a_view_shows_them(box, view, expected):
    assert shown([box], **view).boxes.tolist() == [expected]


def test_a_box_ends_at_the_border_of_the_crop_and_is_counted():
    in_view = shown([[0, 0, 30, 30], [25, 15, 45, 35]], crop=(20, 10, 60, 50), size=40)
    assert in_view.boxes.tolist() == [[0, 0, 10, 20], [5, 5, 25, 25]]
    assert (in_view.n_outside, in_view.n_cut) == (0, 1)
    assert (in_view.area, in_view.area_shown) == (30 * 30 + 20 * 20, 10 * 20 + 20 * 20)


@pytest.mark.parametrize("box", [[0, 0, 20, 50], [60, 10, 90, 50], [20, 0, 60, 10], [20, 50, 60, 90]])
def test_a_box_outside_of_the_crop_is_counted(box):
    in_view = shown([box], crop=(20, 10, 60, 50), size=40)
    assert in_view.boxes.shape == (0, 4)
    assert (in_view.n_outside, in_view.n_cut, in_view.area_shown) == (1, 0, 0)
    assert in_view.area > 0


def test_corners_belong_to_their_box():
    # Widths are 2 and 2, one column shared: 2 of 2 + 2 - 1 columns. Without + 1, they would share nothing.
    assert iou(np.array([[0, 0, 1, 9]]), np.array([[1, 0, 2, 9]])).item() == pytest.approx(1 / 3)
    assert iou(np.array([[0, 0, 1, 9]]), np.array([[2, 0, 3, 9]])).item() == 0
    assert iou(np.array([[5, 5, 5, 5]]), np.array([[5, 5, 5, 5]])).item() == 1


def test_every_box_with_every_other():
    a, b = np.array([[0, 0, 9, 9], [0, 0, 4, 9]]), np.array([[0, 0, 9, 9], [5, 0, 9, 9], [50, 50, 60, 60]])
    assert iou(a, b).tolist() == [[1, 0.5, 0], [0.5, 0, 0]]
    assert iou(a, np.zeros((0, 4), np.int64)).shape == (2, 0)
