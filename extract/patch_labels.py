"""Labels of patches: from an image's label map through each of its views."""

from collections.abc import Sequence

import numpy as np

from extract.datasets import ImageSet
from extract.datasets.label_maps import LabelMaps
from extract.datasets.turning import turned, turning_of
from extract.encoders import Encoder
from store import ArrayLayout
from store.format.layout import ArrayName
from store.truths.reading import VOID
from store.truths.view import patch_labels

WHAT = "patch_label"


def is_patch_label(name: str) -> bool:
    """Whether an array holds labels of patches."""
    parts = ArrayName.parse(name)
    return parts.kind == "images" and parts.what == WHAT


def patch_label_layouts(n_images: int, n_views: int, grid: tuple[int, int], shard_rows: int) -> list[ArrayLayout]:
    """Layouts of the labels of patches, of each view."""
    n_patches = grid[0] * grid[1]
    return [
        ArrayLayout(f"images/patch_label/view{view}", (n_images, n_patches), "int16", ("image", "patch"), shard_rows)
        for view in range(n_views)
    ]


def patch_labels_of(
    images: ImageSet, encoder: Encoder, rows: Sequence[int], layouts: Sequence[ArrayLayout]
) -> dict[str, np.ndarray]:
    """Labels of the patches of some images, by name; void where a map cannot be read, or an image is missing.

    Of an image that turns out to be cut when it is decoded they are those of its map; it is not valid, so nobody reads them.
    """
    views = {a.name: ArrayName.parse(a.name).view for a in layouts if is_patch_label(a.name)}
    if not views:
        return {}
    maps = images.truths["segmentation"]
    assert isinstance(maps, LabelMaps)
    height, width = encoder.config["input_size"][1:]
    arrays = {name: np.full((len(rows), encoder.grid[0] * encoder.grid[1]), VOID, np.int16) for name in views}
    for i, row in enumerate(rows):
        sample = images.samples[row]
        label_map = turned(maps.label_map(sample), turning_of(sample, images.pixels)[0])
        if sample.problem or not label_map.size:
            continue
        for name, view in views.items():
            crop = encoder.views.crop(label_map.shape[::-1], sample.id, view or 0)
            box = np.array(crop.box, np.float32)  # as the store has it
            arrays[name][i] = patch_labels(label_map, box, crop.flip, (height, width), encoder.grid)
    return arrays
