"""Where they look: attention of [cls] and weights of heads drawn over test images (Fig. 2, 8, 9)."""

import base64
import io
import math
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from pipelines.overlay import blend
from pipelines.report.chosen import chosen, told
from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Gallery, Picture, Section, Text
from pipelines.report.maps import Maps, maps_of

if TYPE_CHECKING:
    from extract.datasets import ImageSet
    from extract.datasets.sample import Sample

SIDE = 128  # pixels of a drawn image
QUALITY = 85  # of WebP: a quarter of a PNG's bytes, and no difference that one sees


def section(inputs: Inputs) -> Section:
    """A row for each chosen image, a column for each map, and why other maps are left out.

    Raises: BeyondClsError: a file of maps is damaged, or there is no image of a chosen id.
    """
    gallery, left_out = _gallery(inputs)
    blocks: list[Block] = []
    if gallery is not None:
        blocks += [
            Text(
                f"{told(inputs.examples)} [cls] attention: of [cls] to the patches in the last block, mean over attention "
                "heads. Weights: those that a trained head gives to the patches, mean over seeds. As Fig. 2, 8 and 9 of the "
                "paper."
            ),
            Text(
                "Each map is scaled to its own range, from dark (lowest) to bright (highest), so a nearly even map shows as "
                "much contrast as a selective one; the number below it is its peak as a multiple of an even map (1 / T). "
                "Maps are drawn over the centre square of the image. White frames, where there are any, are the boxes that "
                "the data set gives for its objects. Heads that weigh all patches alike are not drawn.",
                kind="note",
            ),
            gallery,
        ]
    if left_out:
        blocks.append(Text("Left out:" if gallery else "Overlays are left out:", tuple(left_out), "notice"))
    return Section("overlays", "Where they look", tuple(blocks))


def _gallery(inputs: Inputs) -> tuple[Gallery | None, list[str]]:
    data = inputs.folders.images
    if inputs.examples.n == 0 and not inputs.examples.ids:
        return None, ["No examples were asked for."]
    if data is None:
        return None, [
            "No images were named, or those of params.yaml are not here; name those that were extracted (--data and --split)."
        ]
    try:
        from extract.datasets import DataError, open_images
    except ModuleNotFoundError as error:
        return None, [f"Images cannot be read: {error}; install beyondcls[extract]."]
    try:
        images = open_images(data, split=inputs.folders.split)
        if problems := images.all_problems():
            return None, [
                f"{data} has {len(problems)} problem(s), so it is not certain which map is of which image: {problems[0]}"
            ]
        rows = chosen(images, inputs.examples)
        maps, left_out = maps_of(inputs, images)
        return _drawn(images, rows, maps) if maps else None, left_out
    except DataError as error:
        return None, [f"The images of {data} cannot be read: {error}"]


def _drawn(images: "ImageSet", rows: list[int], maps: list[Maps]) -> Gallery:
    groups = [("", 1), *((encoder, len(list(those))) for encoder, those in groupby(maps, lambda m: m.encoder))]
    columns = ("image", *(m.kind for m in maps))
    return Gallery("Test images with attention maps", tuple(groups), columns, tuple(_row(images, row, maps) for row in rows))


def _row(images: "ImageSet", row: int, maps: list[Maps]) -> tuple[Picture, ...]:
    sample, image = images.samples[row], images.image(row)
    label = _label(images, sample)
    square = _square(image)
    frames = _frames(sample, image.size)
    pictures = [Picture(_uri(square, frames), f"test image {sample.id}, class {label}{_counted(frames)}", (label, sample.id))]
    for column in maps:
        weights = np.asarray(column.weights[row], np.float64)
        side = math.isqrt(len(weights))
        peak = float(weights.max() / weights.mean()) if weights.mean() > 0 else 0.0
        alt = f"{column.kind} of {column.encoder} on image {sample.id} ({label}), highest weight {peak:.1f} times uniform"
        pictures.append(
            Picture(_uri(blend(square, weights.reshape(side, side)), frames), alt + _counted(frames), (f"peak {peak:.1f}×",))
        )
    return tuple(pictures)


def _label(images: "ImageSet", sample: "Sample") -> str:
    """Its class, or its classes."""
    names = [images.classes[label] if images.classes else f"class {label}" for label in sample.labels or ()]
    return ", ".join(names) or "without label"


def _square(image: Image.Image) -> UInt8[np.ndarray, "S S 3"]:
    """The centre square at the drawn size."""
    side = min(image.size)
    left, top = ((extent - side) // 2 for extent in image.size)
    square = image.crop((left, top, left + side, top + side))
    return np.asarray(square.resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def _frames(sample: "Sample", size: tuple[int, int]) -> list[tuple[float, float, float, float]]:
    """The boxes that reach into the centre square, in its drawn pixels."""
    side = min(size)
    left, top = ((extent - side) // 2 for extent in size)
    moved = [((x0 - left, y0 - top, x1 - left, y1 - top)) for x0, y0, x1, y1, *_ in sample.boxes]
    scaled = [tuple(value * SIDE / side for value in box) for box in moved]
    return [(x0, y0, x1, y1) for x0, y0, x1, y1 in scaled if x0 < SIDE and y0 < SIDE and x1 > 0 and y1 > 0]


def _counted(frames: list[tuple[float, float, float, float]]) -> str:
    """For those who cannot see them."""
    told = [f"from {x0:.0f}, {y0:.0f} to {x1:.0f}, {y1:.0f}" for x0, y0, x1, y1 in frames]
    return f"; boxes of objects in pixels of {SIDE}: {', '.join(told)}" if told else ""


def _uri(picture: UInt8[np.ndarray, "S S 3"], frames: list[tuple[float, float, float, float]]) -> str:
    """The picture with its frames, white within black so that they show on any ground."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    for x0, y0, x1, y1 in frames:
        corners = [round(min(max(value, 1), SIDE - 2)) for value in (x0, y0, x1, y1)]
        draw.rectangle([corners[0] - 1, corners[1] - 1, corners[2] + 1, corners[3] + 1], outline="black", width=3)
        draw.rectangle(corners, outline="white")
    target = io.BytesIO()
    image.save(target, format="WEBP", quality=QUALITY, method=6)
    return "data:image/webp;base64," + base64.b64encode(target.getvalue()).decode("ascii")
