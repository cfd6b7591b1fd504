"""The instances of an image as a view shows them: what a detector learns."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.data import Dataset

from probe.detection.boxes import cut_to
from probe.detection.frame import frame_of
from store import BeyondClsError, FeatureStore
from store.truths import InstancesOfImage, boxes_in_view, masks_in_view

SMALLEST = 1.0  # pixel of the frame: what is left of a box at least
Target = dict[str, Tensor]


class Targets(Dataset[Target]):
    """Targets of a feature set's images by (row, view), which other processes can compute.

    Args:
        store: a feature set with instances.
        views: those that will be asked for.
        masks: whether targets have masks.
    """

    def __init__(self, store: FeatureStore, views: Sequence[int], masks: bool):
        self.instances, self.frame, self.masks = store.instances, frame_of(store.grid), masks
        self.crops = {view: store.array(f"images/crop/view{view}").all() for view in views}
        self.flips = {view: flips_of(store, view) for view in views}

    def __getitem__(self, row_and_view: tuple[int, int]) -> Target:
        row, view = row_and_view
        crop, flip = self.crops[view][row], bool(self.flips[view][row])
        return target_of(self.instances.of(row), crop, flip, self.frame, self.masks)


def flips_of(store: FeatureStore, view: int) -> Bool[np.ndarray, "N"]:
    """Whether a view is mirrored, of each image."""
    name = f"images/flip/view{view}"
    if name not in store.attributes["arrays"]:
        return np.zeros(len(store), bool)
    return store.array(name).all().astype(bool)


def target_of(image: InstancesOfImage, crop: Float[np.ndarray, "4"], flip: bool, frame: tuple[int, int], masks: bool) -> Target:
    """Boxes [n, 4] float32 within the frame, labels [n] int64 from 1, and masks [n, H, W] uint8 if `masks` is set.

    Left out are crowds, boxes without area, and what the view does not show: less than a pixel of the box, or none of the mask.
    """
    boxes = boxes_in_view(image.boxes, crop, flip, frame)
    inside = cut_to(boxes, frame)
    sides = inside[:, 2:] - inside[:, :2]
    kept = ~image.crowds & (sides >= SMALLEST).all(1)
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
