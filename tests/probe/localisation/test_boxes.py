"""Score maps to threshold, boxes around their contours, and true boxes as views show them."""

import cv2
import numpy as np
import pytest

from probe.localisation.boxes import candidates, centre_map, evaluation_map, into_view


@pytest.mark.parametrize("scores", [np.full((7, 7), 1 / 49), np.full((7, 7), np.nan)])
def test_a_map_without_information_is_black(scores):
    with np.errstate(all="raise"):
        assert not evaluation_map(scores, 30).any()


def test_centre_map_is_symmetric_about_the_centre():
    scores = centre_map(10, 10)
    assert np.allclose(scores, scores.T)
    assert np.allclose(scores, scores[::-1])
    assert scores.argmax() in (44, 45, 54, 55)
    assert np.allclose(centre_map(5, 15)[:, 1::3], centre_map(5, 5)), "as wide as the grid"


SIZE = 20
# Rectangles x0, y0, x1, y1 (corners belong to them), each of a value, one over the other.
PICTURES = {
    "a rectangle": [(3, 4, 9, 12, 255)],
    "at the last pixel": [(10, 12, 19, 19, 255)],
    "an island in a hole": [(1, 1, 18, 18, 255), (4, 4, 15, 15, 0), (8, 8, 10, 10, 255)],
    "diagonal pixels": [(4, 4, 4, 4, 255), (5, 5, 5, 5, 255)],
    "a bay open to the border": [(0, 0, 19, 19, 255), (0, 8, 5, 11, 0)],
    "two levels": [(0, 0, 9, 9, 100), (12, 12, 15, 15, 255)],
    "a thin cross with the larger box": [(0, 9, 10, 9, 255), (5, 4, 5, 14, 255), (12, 5, 19, 12, 255)],
}
CROPPED = {"crop": (20, 10, 60, 50), "size": 40}


@pytest.mark.parametrize("name", [*PICTURES, "noise"])
def test_boxes_of_every_level_are_opencvs(name):
    image = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE)).astype(np.uint8)
    if name in PICTURES:
        image[:] = 0
    for x0, y0, x1, y1, value in PICTURES.get(name, ()):
        image[y0 : y1 + 1, x0 : x1 + 1] = value
    found = candidates(image)
    ends = [*found.starts[1:], len(found.boxes)]
    for level in range(int(image.max())):
        contours = cv2.findContours((image > level).astype(np.uint8), cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[0]
        expected = [[x, y, min(x + w, SIZE - 1), min(y + h, SIZE - 1)] for x, y, w, h in map(cv2.boundingRect, contours)]
        part = found.of_level[level]
        assert sorted(found.boxes[found.starts[part] : ends[part]].tolist()) == sorted(expected)
        largest = expected[int(np.argmax([cv2.contourArea(contour) for contour in contours]))]
        assert found.boxes[found.largest[part]].tolist() == largest


@pytest.mark.parametrize(
    ("boxes", "view", "expected", "counts"),
    [
        ([[10, 5, 60, 25], [0, 0, 100, 50]], {}, [[20, 20, 120, 100], [0, 0, 200, 200]], (0, 0, 48000, 48000)),
        ([[1.25, 1.5, 7.75, 7.5]], {"crop": (0, 0, 10, 10), "size": 10}, [[1, 1, 7, 7]], (0, 0, 39, 39)),
        ([[10, 5, 60, 25]], {"flip": True}, [[80, 20, 180, 100]], (0, 0, 8000, 8000)),
        ([[0, 0, 100, 50]], {"crop": (0, -25, 100, 75)}, [[0, 50, 200, 150]], (0, 0, 20000, 20000)),
        ([[0, 0, 30, 30], [25, 15, 45, 35]], CROPPED, [[0, 0, 10, 20], [5, 5, 25, 25]], (0, 1, 1300, 600)),
        ([[0, 0, 20, 50], [60, 10, 90, 50], [20, 0, 60, 10], [20, 50, 60, 90]], CROPPED, [], (4, 0, 4200, 0)),
    ],
    ids=["whole image", "whole numbers", "mirrored", "padded", "cut at the border", "outside"],
)
def test_boxes_are_where_a_view_shows_them(boxes, view, expected, counts):
    crop, flip, size = ({"crop": (0, 0, 100, 50), "flip": False, "size": 200} | view).values()
    shown = into_view(np.array(boxes, np.float32), np.array(crop, np.float32), flip, size)
    assert shown.boxes.tolist() == expected
    assert (shown.n_outside, shown.n_cut, shown.area, shown.area_shown) == counts
