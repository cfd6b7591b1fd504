"""Score maps as images to threshold, the candidate boxes of each at every threshold, and their overlap with true ones."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt8

BRIGHTEST = 255
N_LEVELS = 255  # pixels are brighter than 0, 1, …, 254


@dataclass(frozen=True)
class InView:
    """Boxes of one image as a view shows them.

    Attributes:
        boxes: [n, 4] x0, y0, x1, y1 in pixels of the evaluation frame, whole numbers 0…size.
        n_outside: boxes that are left out, as the view shows nothing of them.
        n_cut: boxes that the view shows in part; `boxes` has that part.
        area: of all boxes, including those outside, in pixels of the evaluation frame before any rounding.
        area_shown: the part of that area in the frame.
    """

    boxes: Int[np.ndarray, "n 4"]
    n_outside: int
    n_cut: int
    area: float
    area_shown: float


def into_view(boxes: Float[np.ndarray, "m 4"], crop: Float[np.ndarray, "4"], flip: bool, size: int) -> InView:
    """Boxes in pixels of the original, through the crop of a view, into a frame of `size` by `size`.

    Where the crop is the whole image, these are the boxes of the authors' `resize_bbox`: scaled, then cut to whole numbers.
    They have no other crops. Here the frame is the view: boxes end at its borders.

    Args:
        crop: x0, y0, x1, y1 that the view shows, in pixels of the original.
        flip: whether it is mirrored.
    """
    corners = np.asarray(boxes, np.float64).reshape(-1, 2, 2)
    low, high = np.asarray(crop, np.float64).reshape(2, 2)
    scaled = ((corners - low) * size / (high - low)).reshape(-1, 4)
    if flip:
        scaled[:, [0, 2]] = size - scaled[:, [2, 0]]
    inside = (scaled[:, 2:] > 0).all(1) & (scaled[:, :2] < size).all(1)
    visible = scaled[inside]
    shown = np.clip(visible, 0, size)
    n_cut = int((shown != visible).any(1).sum())
    return InView(shown.astype(np.int64), int((~inside).sum()), n_cut, _area(scaled), _area(shown))


def _area(boxes: Float[np.ndarray, "n 4"]) -> float:
    """The summed area of boxes."""
    return float((boxes[:, 2:] - boxes[:, :2]).prod(1).sum())


def iou(a: Int[np.ndarray, "n 4"], b: Int[np.ndarray, "m 4"]) -> Float[np.ndarray, "n m"]:
    """Intersection over union of boxes whose corners are pixels that belong to them: a width is x1 - x0 + 1."""
    a, b = a[:, None], b[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]) + 1
    shared = np.maximum(sides, 0).prod(-1)
    areas = [(c[..., 2:] - c[..., :2] + 1).prod(-1) for c in (a, b)]
    return shared / (areas[0] + areas[1] - shared)


def evaluation_map(scores: Float[np.ndarray, "h w"], size: int) -> UInt8[np.ndarray, "size size"]:
    """A score map in the evaluation frame: resized (bicubic), normalised to 0…1 by its extremes, times 255 and cut to integers.

    As in the authors' code. A map without information, constant or with NaN, is 0 everywhere; any other reaches 0 and 255.
    """
    import cv2

    if not np.isfinite(scores).all() or scores.min() == scores.max():
        return np.zeros((size, size), np.uint8)
    resized = cv2.resize(np.ascontiguousarray(scores, np.float64), (size, size), interpolation=cv2.INTER_CUBIC)
    above = resized - resized.min()
    return (above / above.max() * BRIGHTEST).astype(np.uint8)


def centre_map(rows: int, columns: int) -> Float[np.ndarray, "rows columns"]:
    """The baseline that does not depend on the image: an isotropic Gaussian at the centre, as in Choe et al. 2020.

    Its level sets are discs; the best threshold chooses the side of a central square. The width of the Gaussian, a quarter of
    the frame here, only decides how finely.
    """
    down, across = ((np.arange(n) - (n - 1) / 2) / (n / 4) for n in (rows, columns))
    return np.exp(-(down[:, None] ** 2 + across[None] ** 2) / 2)


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
            boxes.append((0, 0, 0, 0))
            continue
        # All bright pixels are in this part; the rest has no contours.
        bright = (image[top:bottom, left:right] > value).view(np.uint8)
        contours = cv2.findContours(bright, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE, offset=(left, top))[0]
        areas = [cv2.contourArea(contour) for contour in contours]
        largest.append(len(boxes) + areas.index(max(areas)))
        last_row, last_column = image.shape[0] - 1, image.shape[1] - 1
        rectangles = map(cv2.boundingRect, contours)
        boxes += [(x, y, min(x + width, last_column), min(y + height, last_row)) for x, y, width, height in rectangles]
    of_level = np.searchsorted(values, np.arange(N_LEVELS), side="right") - 1
    return Candidates(np.array(boxes), np.array(starts), np.array(largest), of_level)


def _extent(brightest: UInt8[np.ndarray, "S"], values: UInt8[np.ndarray, "k"]) -> tuple[list[int], list[int]]:
    """First line with a pixel brighter than each value, and one past the last such line; all lines if no pixel is brighter."""
    bright = brightest > values[:, None]  # [k, S]
    return bright.argmax(1).tolist(), (len(brightest) - bright[:, ::-1].argmax(1)).tolist()
