"""What a view shows of truths.

A view is `crop`, a box x0, y0, x1, y1 in pixels of the original which may reach beyond it, sampled at the centres of its own
pixels, then mirrored if `flip`. `images/crop/view{V}` and `images/flip/view{V}` of a feature set hold both.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Float32, Int16

Crop = Sequence[float] | np.ndarray


def map_in_view(
    label_map: Int16[np.ndarray, "h w"], crop: Crop, flip: bool, size: tuple[int, int]
) -> Int16[np.ndarray, "rows columns"]:
    """A label map as a view of `size` (rows, columns) shows it: at the centres of its pixels, -1 beyond the image."""
    return _in_view(label_map, crop, flip, size, -1)


def masks_in_view(
    masks: Bool[np.ndarray, "n h w"], crop: Crop, flip: bool, size: tuple[int, int]
) -> Bool[np.ndarray, "n rows columns"]:
    """Masks as a view of `size` (rows, columns) shows them: at the centres of its pixels, false beyond the image."""
    return _in_view(masks, crop, flip, size, False)


def values_in_view(
    values: Float32[np.ndarray, "c h w"], crop: Crop, flip: bool, size: tuple[int, int]
) -> Float32[np.ndarray, "c rows columns"]:
    """Values of pixels as a view of `size` (rows, columns) shows them: at the centres of its pixels, NaN beyond the image."""
    return _in_view(values, crop, flip, size, np.nan)


def boxes_in_view(boxes: Float[np.ndarray, "n 4"], crop: Crop, flip: bool, size: tuple[int, int]) -> Float[np.ndarray, "n 4"]:
    """Boxes x0, y0, x1, y1 of the original in pixels of a view of `size` (rows, columns); they may reach beyond it."""
    x0, y0, x1, y1 = (float(corner) for corner in crop)
    scale = np.array([size[1] / (x1 - x0), size[0] / (y1 - y0)] * 2)
    placed = (np.asarray(boxes, np.float64) - [x0, y0, x0, y0]) * scale
    if flip:
        placed[:, [0, 2]] = size[1] - placed[:, [2, 0]]
    return placed.astype(boxes.dtype)


def _in_view(values: np.ndarray, crop: Crop, flip: bool, size: tuple[int, int], beyond: float) -> np.ndarray:
    x0, y0, x1, y1 = (float(corner) for corner in crop)
    # The pixel of the original at the centre of each of the view's: floor(start + (i + 1/2) (stop - start) / n). Numerators are
    # exact for corners of 32 bits, and so is numpy's division with rest.
    rows, columns = (
        np.floor_divide(2.0 * n * start + (2.0 * np.arange(n) + 1) * (stop - start), 2.0 * n).astype(np.int64)
        for n, start, stop in ((size[0], y0, y1), (size[1], x0, x1))
    )
    if flip:
        columns = columns[::-1]
    height, width = values.shape[-2:]
    inside = ((rows >= 0) & (rows < height))[:, None] & (columns >= 0) & (columns < width)
    if not height or not width:
        return np.full((*values.shape[:-2], *size), beyond, values.dtype)
    taken = values[..., rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)]
    return np.where(inside, taken, values.dtype.type(beyond))


def patch_labels(
    label_map: Int16[np.ndarray, "h w"], crop: Crop, flip: bool, size: tuple[int, int], grid: tuple[int, int]
) -> Int16[np.ndarray, "T"]:
    """The label of each patch of a view, row by row of the grid; -1 where void is the most frequent.

    Of labels that are equally frequent, the lowest counts, and void last.

    Args:
        size: rows and columns of the encoder's input, in pixels.
        grid: rows and columns of patches.
    """
    shown = map_in_view(label_map, crop, flip, size)
    rows, columns = size
    cell = np.arange(rows)[:, None] * grid[0] // rows * grid[1] + np.arange(columns) * grid[1] // columns
    labels, index = np.unique(shown, return_inverse=True)
    counted = np.bincount((cell * len(labels) + index.reshape(shown.shape)).ravel(), minlength=grid[0] * grid[1] * len(labels))
    by_label = counted.reshape(-1, len(labels))
    if labels[0] < 0:  # void is the last to win
        by_label, labels = np.roll(by_label, -1, 1), np.roll(labels, -1)
    return labels[by_label.argmax(1)].astype(np.int16)
