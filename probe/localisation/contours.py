"""Candidate boxes of a score map, at every threshold."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt8

N_LEVELS = 255  # pixels are brighter than 0, 1, …, 254
NOTHING = (0, 0, 0, 0)


@dataclass(frozen=True)
class Candidates:
    """Boxes around the contours of a map.

    Levels between the same two values of the map have the same contours, which are kept once.

    Attributes:
        boxes: [n, 4] x0, y0, x1, y1, grouped by set of contours.
        starts: [k] first box of each of k sets of contours.
        largest: [k] box of the contour with the largest area, in each set.
        of_level: [255] the set of each level.
    """

    boxes: Int[np.ndarray, "n 4"]
    starts: Int[np.ndarray, "k"]
    largest: Int[np.ndarray, "k"]
    of_level: Int[np.ndarray, "255"]


def candidates(image: UInt8[np.ndarray, "S S"]) -> Candidates:
    """Boxes around all contours of the pixels brighter than each level.

    As the authors': contours are those of `cv2.findContours` with RETR_TREE and CHAIN_APPROX_SIMPLE, so diagonal neighbours
    belong together, and the border of a hole is a contour too. x1 = x0 + width, which is one pixel past the last, but not past
    the map. Where no pixel is brighter there is one box, 0, 0, 0, 0.

    Args:
        image: a map of which 0 and 255 are the extremes, or which is 0 everywhere.
    """
    import cv2

    values = np.unique(image)
    tops, bottoms = _extent(image.max(1), values)
    lefts, rights = _extent(image.max(0), values)
    boxes: list[tuple[int, int, int, int]] = []
    starts, largest = [], []
    for value, top, bottom, left, right in zip(values, tops, bottoms, lefts, rights, strict=True):
        starts.append(len(boxes))
        if value == values[-1]:
            largest.append(len(boxes))
            boxes.append(NOTHING)
            continue
        # All bright pixels are in this part; the rest has no contours.
        bright = (image[top:bottom, left:right] > value).view(np.uint8)
        contours = cv2.findContours(bright, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE, offset=(left, top))[0]
        areas = [cv2.contourArea(contour) for contour in contours]
        largest.append(len(boxes) + areas.index(max(areas)))
        boxes += [_box(*cv2.boundingRect(contour), *image.shape) for contour in contours]
    of_level = np.searchsorted(values, np.arange(N_LEVELS), side="right") - 1
    return Candidates(np.array(boxes), np.array(starts), np.array(largest), of_level)


def largest_box(image: UInt8[np.ndarray, "S S"], level: int) -> tuple[int, int, int, int]:
    """Box of the contour with the largest area at one level, as `candidates` has it: x0, y0, x1, y1."""
    import cv2

    contours = cv2.findContours((image > level).view(np.uint8), cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[0]
    if not contours:
        return NOTHING
    return _box(*cv2.boundingRect(max(contours, key=cv2.contourArea)), *image.shape)


def _extent(brightest: UInt8[np.ndarray, "S"], values: UInt8[np.ndarray, "k"]) -> tuple[list[int], list[int]]:
    """First line with a pixel brighter than each value, and one past the last such line; all lines if no pixel is brighter."""
    bright = brightest > values[:, None]  # [k, S]
    return bright.argmax(1).tolist(), (len(brightest) - bright[:, ::-1].argmax(1)).tolist()


def _box(x: int, y: int, width: int, height: int, n_down: int, n_across: int) -> tuple[int, int, int, int]:
    return x, y, min(x + width, n_across - 1), min(y + height, n_down - 1)
