"""What a view shows of truths, and its own maps back in pixels of the original.

A view is `crop`, a box x0, y0, x1, y1 in pixels of the original which may reach beyond it, sampled at the centres of its own
pixels, then mirrored if `flip`. `images/crop/view{V}` and `images/flip/view{V}` of a feature set hold both.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int16

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


def boxes_in_view(boxes: Float[np.ndarray, "n 4"], crop: Crop, flip: bool, size: tuple[int, int]) -> Float[np.ndarray, "n 4"]:
    """Boxes x0, y0, x1, y1 of the original in pixels of a view of `size` (rows, columns); they may reach beyond it."""
    x0, y0, x1, y1 = (float(corner) for corner in crop)
    scale = np.array([size[1] / (x1 - x0), size[0] / (y1 - y0)] * 2)
    placed = (np.asarray(boxes, np.float64) - [x0, y0, x0, y0]) * scale
    if flip:
        placed[:, [0, 2]] = size[1] - placed[:, [2, 0]]
    return placed.astype(boxes.dtype)


def map_from_view(values: np.ndarray, crop: Crop, flip: bool, size: tuple[int, int]) -> np.ndarray:
    """What a view says of each pixel of the original: values [rows, columns], or [C, rows, columns], to [h, w] or [C, h, w].

    Integers and booleans are taken from the pixel of the view in which the centre of the original's pixel is; others are
    interpolated linearly between the centres of the view's pixels, and constant beyond the outermost.

    Args:
        size: height and width of the original.

    Returns:
        As the values, where the view does not show a pixel -1 (integers), false or NaN.
    """
    x0, y0, x1, y1 = (float(corner) for corner in crop)
    mirrored = values[..., ::-1] if flip else values
    rows, is_row = _positions(size[0], y0, y1, values.shape[-2])
    columns, is_column = _positions(size[1], x0, x1, values.shape[-1])
    shown = is_row[:, None] & is_column
    if values.dtype.kind in "biu":
        taken = mirrored[..., _cells(rows, values.shape[-2])[:, None], _cells(columns, values.shape[-1])]
        return np.where(shown, taken, values.dtype.type(0 if values.dtype.kind in "bu" else -1))
    between = _interpolated(_interpolated(mirrored, rows, -2), columns, -1)
    return np.where(shown, between, values.dtype.type(np.nan))


def _in_view(values: np.ndarray, crop: Crop, flip: bool, size: tuple[int, int], beyond: int | bool) -> np.ndarray:
    x0, y0, x1, y1 = (float(corner) for corner in crop)
    rows, columns = _centres(size[0], y0, y1), _centres(size[1], x0, x1)
    if flip:
        columns = columns[::-1]
    height, width = values.shape[-2:]
    inside = ((rows >= 0) & (rows < height))[:, None] & (columns >= 0) & (columns < width)
    if not height or not width:
        return np.full((*values.shape[:-2], *size), beyond, values.dtype)
    taken = values[..., rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)]
    return np.where(inside, taken, values.dtype.type(beyond))


def _centres(n: int, start: float, stop: float) -> np.ndarray:
    """The pixel of the original at the centre of each of a view's `n` pixels: floor(start + (i + 1/2) (stop - start) / n).

    Numerators are exact for corners of 32 bits, and so is numpy's division with rest.
    """
    odd = 2.0 * np.arange(n) + 1
    return np.floor_divide(2.0 * n * start + odd * (stop - start), 2.0 * n).astype(np.int64)


def _positions(n: int, start: float, stop: float, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the centres of the original's `n` pixels are on a view's axis of `cells` pixels, and whether it shows them."""
    positions = (np.arange(n) + 0.5 - start) * (cells / (stop - start))
    return positions, (positions >= 0) & (positions < cells)


def _cells(positions: np.ndarray, cells: int) -> np.ndarray:
    return np.floor(positions).astype(np.int64).clip(0, cells - 1)


def _interpolated(values: np.ndarray, positions: np.ndarray, axis: int) -> np.ndarray:
    """Values at positions along an axis whose cell i has its centre at i + 1/2."""
    n = values.shape[axis]
    at = (positions - 0.5).clip(0, n - 1)
    lower = np.floor(at).astype(np.int64)
    share = (at - lower).astype(values.dtype).reshape((-1,) + (1,) * (-axis - 1))
    below, above = values.take(lower, axis), values.take((lower + 1).clip(max=n - 1), axis)
    return below + (above - below) * share


def patch_labels(
    label_map: Int16[np.ndarray, "h w"], crop: Crop, flip: bool, size: tuple[int, int], grid: tuple[int, int]
) -> Int16[np.ndarray, "T"]:
    """The label of each patch of a view, row by row of the grid; -1 where void is the most frequent.

    Of labels that are equally frequent, the lowest counts, and void last.

    Args:
        size: rows and columns of the encoder's input, in pixels.
        grid: rows and columns of patches.
    """
    return most_frequent(map_in_view(label_map, crop, flip, size), grid)


def most_frequent(shown: Int16[np.ndarray, "rows columns"], grid: tuple[int, int]) -> Int16[np.ndarray, "T"]:
    """The most frequent label in each cell of a grid, whose cells are the same to a pixel."""
    rows, columns = shown.shape
    cell = np.arange(rows)[:, None] * grid[0] // rows * grid[1] + np.arange(columns) * grid[1] // columns
    labels, index = np.unique(shown, return_inverse=True)
    counted = np.bincount((cell * len(labels) + index.reshape(shown.shape)).ravel(), minlength=grid[0] * grid[1] * len(labels))
    by_label = counted.reshape(-1, len(labels))
    if labels[0] < 0:  # void is the last to win
        by_label, labels = np.roll(by_label, -1, 1), np.roll(labels, -1)
    return labels[by_label.argmax(1)].astype(np.int16)
