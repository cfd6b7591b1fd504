"""Labels of patches: the most frequent label of the pixels that a patch shows."""

import numpy as np
from jaxtyping import Int16

from store.truths.view import Crop, map_in_view


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
