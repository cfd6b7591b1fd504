"""Truths of dense tasks: label maps and instances with masks, and what a view shows of them.

Truths are kept at the resolution of the original image, without loss: every mask is COCO's compressed run lengths.
"""

from store.truths.reading import (
    VOID,
    Instance,
    Instances,
    InstancesOfImage,
    Segment,
    Segmentation,
    TruthColumns,
    instance_columns,
    segment_columns,
)
from store.truths.view import boxes_in_view, map_in_view, masks_in_view, patch_labels

__all__ = [
    "VOID",
    "Instance",
    "Instances",
    "InstancesOfImage",
    "Segment",
    "Segmentation",
    "TruthColumns",
    "boxes_in_view",
    "instance_columns",
    "map_in_view",
    "masks_in_view",
    "patch_labels",
    "segment_columns",
]
