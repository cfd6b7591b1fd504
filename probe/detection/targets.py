"""The instances of an image as a view shows them, in the frame in which a detector sees it: what it learns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.data import Dataset

from probe.truth_batches import TruthBatches
from probe.views import View
from store import BeyondClsError, FeatureStore, Loader
from store.truths import InstancesOfImage, boxes_in_view, masks_in_view
from store.truths.view import Crop

STRIDE = 16  # pixels of the frame for each patch, so that maps of the pyramid have strides of 4, 8, 16 and 32
SMALLEST = 1.0  # pixel of the frame: what is left of a box at least
Target = dict[str, Tensor]


def frame_of(grid: tuple[int, int]) -> tuple[int, int]:
    """Height and width in pixels of the frame of a grid of patches."""
    return grid[0] * STRIDE, grid[1] * STRIDE


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


class Targets(Dataset[Target]):
    """Targets of a feature set's images by (row, view), which other processes can compute.

    Args:
        store: a feature set with instances.
        views: those that will be asked for.
        masks: whether targets have masks.
    """

    def __init__(self, store: FeatureStore, views: Sequence[int], masks: bool):
        self.instances, self.frame, self.masks = store.instances, frame_of(store.grid), masks
        self.views = {view: View(store, view) for view in views}

    def __getitem__(self, row_and_view: tuple[int, int]) -> Target:
        row, view = row_and_view
        return target_of(self.instances.of(row), *self.views[view].shows(row), self.frame, self.masks)


def target_of(image: InstancesOfImage, crop: Float[np.ndarray, "4"], flip: bool, frame: tuple[int, int], masks: bool) -> Target:
    """Boxes [n, 4] float32 within the frame, labels [n] int64 from 1, and masks [n, H, W] uint8 if `masks` is set.

    Left out are crowds, boxes without area, and what the view does not show: less than a pixel of the box, or none of the mask.
    """
    inside = cut_to(boxes_in_view(image.boxes, crop, flip, frame), frame)
    kept = ~image.crowds & (inside[:, 2:] - inside[:, :2] >= SMALLEST).all(1)
    target = {}
    if masks:
        if image.counts is None:
            raise BeyondClsError("these instances have boxes, but no masks; train with --no-masks")
        shown = masks_in_view(image.masks(), crop, flip, frame)
        kept &= shown.any((1, 2))
        target["masks"] = torch.from_numpy(shown[kept].astype(np.uint8))
    target["boxes"] = torch.from_numpy(inside[kept])
    target["labels"] = torch.from_numpy(image.labels[kept].astype(np.int64) + 1)
    return target


def detection_batches(
    store: FeatureStore,
    rows: np.ndarray,
    batch_size: int,
    *,
    views: Sequence[int] = (0,),
    block: int | None = None,
    masks: bool = True,
    workers: int = 0,
    **placed: Any,
) -> TruthBatches:
    """Batches of tokens of some images of a set with instances, with their targets.

    Args:
        views: each epoch shows one of them of each image, at random.
        block: whose tokens are read; the deepest stored one by default.
        masks: whether targets have masks.
        workers: processes that decode targets; 0: this one does.
        placed: device and placement, as for `store.Loader`.
    """
    arrays = {"patch": [store.tokens("patch", block, view) for view in views]}
    loader = Loader(arrays, np.zeros(len(store), np.int64), rows, batch_size, **placed)
    return TruthBatches(loader, Targets(store, views, masks), views, workers)
