"""Boxes in the frame in which they are compared, and their overlap."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


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
