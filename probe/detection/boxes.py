"""Boxes x0, y0, x1, y1 [n, 4] of an image and of the frame in which a detector sees it."""

import numpy as np
from jaxtyping import Bool, Float

from store.truths.view import Crop


def has_area(boxes: Float[np.ndarray, "n 4"]) -> Bool[np.ndarray, "n"]:
    """Whether boxes are wider and higher than nothing."""
    return np.all(boxes[:, 2:] > boxes[:, :2], axis=1)


def cut_to(boxes: Float[np.ndarray, "n 4"], size: tuple[int, int]) -> Float[np.ndarray, "n 4"]:
    """The parts of boxes within an image of this height and width; those outside have no area."""
    return boxes.clip(0, np.array((size[1], size[0]) * 2, boxes.dtype))


def boxes_from_view(
    boxes: Float[np.ndarray, "n 4"], crop: Crop, flip: bool, frame: tuple[int, int]
) -> Float[np.ndarray, "n 4"]:
    """Boxes in a frame (height, width) that a view fills, in pixels of the original: the inverse of `boxes_in_view`."""
    x0, y0, x1, y1 = (float(corner) for corner in crop)
    placed = boxes.astype(np.float64)
    if flip:
        placed[:, [0, 2]] = frame[1] - placed[:, [2, 0]]
    scale = np.array([(x1 - x0) / frame[1], (y1 - y0) / frame[0]] * 2)
    return (placed * scale + [x0, y0, x0, y0]).astype(boxes.dtype)
