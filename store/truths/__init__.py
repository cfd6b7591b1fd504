"""Truths of dense tasks: label maps and instances with masks, and what a view shows of them.

Truths are kept at the resolution of the original image, without loss: every mask is COCO's compressed run lengths.
"""

from store.truths.reading import VOID, Instance, Instances, InstancesOfImage
from store.truths.view import boxes_in_view, map_in_view, masks_in_view

__all__ = ["VOID", "Instance", "Instances", "InstancesOfImage", "boxes_in_view", "map_in_view", "masks_in_view"]
