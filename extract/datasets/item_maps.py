"""Label maps of images that a program gives one by one, beside each image."""

import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from extract.datasets.items import Item, encoded, parts_of
from extract.datasets.label_codes import LOSSY, Indices
from extract.datasets.label_maps import VOID_INDEX, LabelMaps, MapRead, sides
from extract.datasets.sample import Sample
from store import BeyondClsError
from store.truths.reading import VOID


class ItemMaps(LabelMaps):
    """Label maps of items: indices from 0 in order of `classes`, with 255 or -1 for void."""

    def __init__(self, classes: Sequence[str]):
        self._indices = Indices.counted(len(classes), void=[VOID_INDEX])
        super().__init__(classes, {}, self._indices)

    def _open(self, sample: Sample) -> MapRead:
        assert isinstance(sample, Item), sample
        assert sample.items is not None
        parts = parts_of(sample.items.item(sample.row))
        try:
            picture = _picture(parts["segmentation"])
            if picture.format in LOSSY:
                raise ValueError(f"is a {picture.format}, whose values are not those that were saved; PNG was expected")
            labels = self._indices.labels(picture)
            image = Image.open(io.BytesIO(sample.read())) if not sample.problem else None
            if image is not None and labels.shape != (image.height, image.width):
                raise ValueError(f"has {sides(labels.shape)} pixels (width x height), its image {image.width} x {image.height}")
        except BeyondClsError:
            raise
        except (ValueError, TypeError, OSError) as error:
            return MapRead(problem=f"its label map {error}")
        return MapRead.of(labels)


def _picture(values: Any) -> Image.Image:
    """A label map as a picture of indices."""
    if values is None:
        raise ValueError("is not there")
    if isinstance(values, Image.Image):
        return values
    if isinstance(values, dict | bytes | os.PathLike):
        return Image.open(io.BytesIO(encoded(values)))
    indices = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values).squeeze()
    if indices.ndim != 2 or indices.dtype.kind not in "iu":
        raise ValueError(f"is an array {list(indices.shape)} of {indices.dtype}, expected [H, W] of whole numbers")
    return Image.fromarray(np.where(indices == VOID, VOID_INDEX, indices).astype(np.int32))
