"""Where they look: attention of [cls] and weights of heads drawn over test images (Fig. 2, 8, 9)."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from pipelines.live.overlay import blend, cut_out
from pipelines.report.chosen import chosen_rows, how_chosen
from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Gallery, Picture, Section, Text
from pipelines.report.maps import Maps, maps_of
from pipelines.report.pictures import Outline, fitted, opened, uri, within

if TYPE_CHECKING:
    from extract.datasets import ImageSet
    from extract.datasets.sample import Box, Sample


def section(inputs: Inputs) -> Section:
    """A row for each chosen image, a column for each map, and why other maps are left out.

    Raises:
        BeyondClsError: a file of maps is damaged, or no image has a chosen id.
    """
    gallery, left_out = _gallery(inputs)
    blocks: list[Block] = []
    if gallery is not None:
        blocks += [
            Text(
                f"{how_chosen(inputs.examples)} [cls] attention: of [cls] to the patches in the probed block, mean over "
                "attention heads. Weights: those that a trained head gives to the patches, mean over seeds. As Fig. 2, 8 and 9 "
                "of the paper."
            ),
            Text(
                "Each map is scaled to its own range, from dark (lowest) to bright (highest), so a nearly even map shows as "
                "much contrast as a selective one; the number below it is its peak as a multiple of an even map (1 / T). "
                "The first picture is the whole image; each map covers the part of it that its encoder saw, black where "
                "that was padded. White frames, where there are any, are the boxes that the data set gives for its objects. "
                "Heads that weigh all patches alike are not drawn.",
                kind="note",
            ),
            gallery,
        ]
    if left_out:
        blocks.append(Text("Left out:" if gallery else "Overlays are left out:", tuple(left_out), "notice"))
    return Section("overlays", "Where they look", tuple(blocks))


def _gallery(inputs: Inputs) -> tuple[Gallery | None, list[str]]:
    if inputs.examples.n == 0 and not inputs.examples.ids:
        return None, ["No examples were asked for."]
    folders = inputs.folders
    images = opened(folders.images, split=folders.split, form=folders.form, classes=folders.classes, pixels=folders.pixels)
    if isinstance(images, str):
        return None, [images]
    from extract.datasets import DataError

    rows = chosen_rows(images, inputs.examples)
    maps, left_out = maps_of(inputs, images)
    try:
        return _drawn(images, rows, maps) if maps else None, left_out
    except DataError as error:
        return None, [f"The images of {folders.images} cannot be read: {error}"]


def _drawn(images: "ImageSet", rows: list[int], maps: list[Maps]) -> Gallery:
    groups = [
        ("", 1),
        *((encoder, len(list(maps_of_encoder))) for encoder, maps_of_encoder in groupby(maps, lambda m: m.encoder)),
    ]
    columns = ("image", *(m.kind for m in maps))
    return Gallery("Test images with attention maps", tuple(groups), columns, tuple(_row(images, row, maps) for row in rows))


def _row(images: "ImageSet", row: int, maps: list[Maps]) -> tuple[Picture, ...]:
    sample, image = images.samples[row], images.image(row)
    label = _label(images, sample)
    boxes = images.boxes(row)
    whole, frames = _shown(boxes, image, (0, 0, *image.size))
    alt = f"test image {sample.id}, class {label}"
    pictures = [Picture(uri(whole, frames), alt + _counted(frames, whole), (label, sample.id))]
    for column in maps:
        weights = np.asarray(column.weights[row], np.float64)
        side = math.isqrt(len(weights))
        peak = float(weights.max() / weights.mean()) if weights.mean() > 0 else 0.0
        seen, frames = _shown(boxes, image, column.crops[row])
        alt = f"{column.kind} of {column.encoder} on image {sample.id} ({label}), highest weight {peak:.1f} times uniform"
        drawn = uri(blend(seen, weights.reshape(side, side)), frames)
        pictures.append(Picture(drawn, alt + _counted(frames, seen), (f"peak {peak:.1f}×",)))
    return tuple(pictures)


def _shown(
    boxes: "Sequence[Box]", image: Image.Image, part: Sequence[float]
) -> tuple[UInt8[np.ndarray, "H W 3"], list[Outline]]:
    """A part of an image, black beyond its borders, and those of its boxes that are in it."""
    x0, y0, x1, y1 = map(float, part)
    size = fitted(part)
    seen = within([box[:4] for box in boxes], part, size)
    return cut_out(image, (x0, y0, x1, y1), size), [Outline(box) for box in seen]


def _label(images: "ImageSet", sample: "Sample") -> str:
    """Its class, or its classes."""
    names = [images.classes[label] if images.classes else f"class {label}" for label in sample.labels or ()]
    return ", ".join(names) or "without label"


def _counted(frames: list[Outline], picture: UInt8[np.ndarray, "H W 3"]) -> str:
    """The frames in words, for the text alternative."""
    height, width, _ = picture.shape
    where = ["from {:.0f}, {:.0f} to {:.0f}, {:.0f}".format(*frame.box) for frame in frames]
    return f"; boxes of objects in pixels of {width} x {height}: {', '.join(where)}" if where else ""
