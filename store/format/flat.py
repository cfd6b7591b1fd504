"""Arrays without an image axis: weights of the final norm, and truths of all images, one after the other."""

from collections.abc import Sequence

import numpy as np

from store.format.layout import CHECKED_NBYTES, ArrayLayout

SHARD_CHUNKS = 1024  # 64 MiB
# By name; those of other arrays are channels.
DIMENSIONS = {
    "images/segmentation/first": ("image_boundary",),
    "images/segmentation/label": ("segment",),
    "images/segmentation/start": ("segment_boundary",),
    "images/segmentation/counts": ("byte",),
    "images/instances/first": ("image_boundary",),
    "images/instances/label": ("instance",),
    "images/instances/box": ("instance", "corner"),
    "images/instances/area": ("instance",),
    "images/instances/crowd": ("instance",),
    "images/instances/start": ("instance_boundary",),
    "images/instances/counts": ("byte",),
}


def flat_layout(name: str, shape: Sequence[int], dtype: str) -> ArrayLayout:
    """Layout of an array without an image axis.

    A chunk has 64 KiB, as has what shares a digest, so a few bytes of a large array can be read and compared alone; a shard has
    1024 chunks. An array that fits into one chunk is one, without padding.
    """
    row_nbytes = ArrayLayout(name, tuple(shape), dtype, ()).row_nbytes
    chunk_rows = min(shape[0], max(1, CHECKED_NBYTES // row_nbytes))
    shard_rows = chunk_rows * min(SHARD_CHUNKS, -(-shape[0] // chunk_rows))
    return ArrayLayout(name, tuple(shape), dtype, DIMENSIONS.get(name, ("channel",)), shard_rows, chunk_rows)


def flat_layout_of(name: str, values: np.ndarray) -> ArrayLayout:
    """Layout of these values."""
    return flat_layout(name, values.shape, values.dtype.name)
