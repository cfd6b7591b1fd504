"""What views show of truths, against drawing pixel by pixel with fractions."""

from collections.abc import Callable
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from store.truths.view import boxes_in_view, map_in_view, masks_in_view, patch_labels

MAPS = arrays_of.arrays(np.int16, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(-1, 3))
SIZES = st.tuples(st.integers(1, 12), st.integers(1, 12))
CORNERS = st.floats(-6, 9, width=32)
LENGTHS = st.floats(0.25, 15, width=32)


@st.composite
def crops(draw: Callable[..., float]) -> np.ndarray:
    """Boxes that may reach beyond the image, as a store has them."""
    x, y = draw(CORNERS), draw(CORNERS)
    return np.array([x, y, x + draw(LENGTHS), y + draw(LENGTHS)], np.float32)


def drawn(label_map: np.ndarray, crop: np.ndarray, flip: bool, size: tuple[int, int]) -> np.ndarray:
    """Each pixel of the view is the pixel of the image at its centre."""
    x0, y0, x1, y1 = (Fraction(float(corner)) for corner in crop)
    out = np.full(size, -1, np.int16)
    for i in range(size[0]):
        for j in range(size[1]):
            across = size[1] - 1 - j if flip else j
            row = floor(y0 + (i + Fraction(1, 2)) * (y1 - y0) / size[0])
            column = floor(x0 + (across + Fraction(1, 2)) * (x1 - x0) / size[1])
            if 0 <= row < label_map.shape[0] and 0 <= column < label_map.shape[1]:
                out[i, j] = label_map[row, column]
    return out


@settings(max_examples=150)
@given(MAPS, crops(), st.booleans(), SIZES)
def test_maps_and_masks(label_map: np.ndarray, crop: np.ndarray, flip: bool, size: tuple[int, int]) -> None:
    expected = drawn(label_map, crop, flip, size)
    shown = map_in_view(label_map, crop, flip, size)
    assert shown.dtype == np.int16
    np.testing.assert_array_equal(shown, expected)
    masks = np.stack([label_map == label for label in range(3)])
    np.testing.assert_array_equal(masks_in_view(masks, crop, flip, size), expected == np.arange(3)[:, None, None])


@settings(max_examples=100)
@given(MAPS, crops(), st.booleans(), st.tuples(st.integers(1, 3), st.integers(1, 3)), st.integers(1, 4))
def test_labels_of_patches(label_map: np.ndarray, crop: np.ndarray, flip: bool, grid: tuple[int, int], pixels: int) -> None:
    """The most frequent of a patch's pixels; the lowest of those that tie, and void last."""
    size = (grid[0] * pixels, grid[1] * pixels)
    expected, view = [], drawn(label_map, crop, flip, size)
    for row in range(grid[0]):
        for column in range(grid[1]):
            patch = view[row * pixels : (row + 1) * pixels, column * pixels : (column + 1) * pixels]
            expected.append(max((0, 1, 2, 3, -1), key=lambda label: (patch == label).sum()))
    assert patch_labels(label_map, crop, flip, size, grid).tolist() == expected


def test_a_centre_between_two_pixels_is_of_the_latter() -> None:
    """Exactly, where the seventh tenth of 90 would be rounded to less than 63."""
    label_map = np.arange(90, dtype=np.int16)[None]
    assert map_in_view(label_map, (0, 0, 90, 1), False, (1, 5)).tolist() == [[9, 27, 45, 63, 81]]


def test_an_image_wider_than_16_bits() -> None:
    label_map = np.zeros((1, 40_000), np.int16)
    label_map[0, -1] = 1
    assert map_in_view(label_map, (39_998, 0, 40_000, 1), False, (1, 2)).tolist() == [[0, 1]]


@pytest.mark.parametrize("flip", [False, True])
def test_boxes_go_where_their_masks_go(flip: bool) -> None:
    mask = np.zeros((1, 10, 20), bool)
    mask[0, 2:6, 4:8] = True
    crop, size = (2, 1, 18, 9), (16, 32)  # twice as large
    (box,) = boxes_in_view(np.array([[4, 2, 8, 6]], np.float32), crop, flip, size)
    shown = masks_in_view(mask, crop, flip, size)[0]
    rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
    assert box.tolist() == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    beyond = boxes_in_view(np.array([[0, 0, 20, 10]], np.float32), crop, flip, size)
    assert beyond.tolist() == [[-4, -2, 36, 18]], "not cut"


def test_an_image_without_pixels() -> None:
    empty = np.zeros((0, 0), np.int16)
    assert (map_in_view(empty, (0, 0, 1, 1), False, (2, 3)) == -1).all()
