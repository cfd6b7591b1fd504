"""Boxes around what is bright, against OpenCV at each level, and by hand."""

import cv2
import numpy as np
import pytest

from probe.localisation.boxes import candidates, largest_box

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
        assert largest_box(image, level) == tuple(largest)  # by itself, without the others


def test_by_hand():
    """The border of a hole runs over bright pixels; x1 is one past the last pixel, or the last of the picture."""
    nested = candidates(drawn("an island in a hole"))
    assert sorted(nested.boxes.tolist())[1:] == [[1, 1, 19, 19], [3, 3, 17, 17], [8, 8, 11, 11]]
    assert largest_box(drawn("at the last pixel"), 100) == (10, 12, 19, 19)


def test_nothing_bright_gives_one_empty_box():
    boxes_found = candidates(np.zeros((SIZE, SIZE), np.uint8))
    assert boxes_found.boxes.tolist() == [[0, 0, 0, 0]]
    assert set(boxes_found.of_level.tolist()) == {0}
    assert largest_box(np.zeros((SIZE, SIZE), np.uint8), 0) == (0, 0, 0, 0)
