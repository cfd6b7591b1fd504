"""Images as the report shows them: small, in their own proportions, with the outlines of boxes, inline."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from store import BeyondClsError

if TYPE_CHECKING:
    from extract.datasets import ImageSet

SIDE, LARGE_SIDE = 128, 256  # pixels of the longer side, of a picture and of one in which more is to be seen
QUALITY = 70  # of WebP: a fifth of a PNG's bytes, and no visible difference
DASH = 5  # pixels, of a line and of the gap after it
BoxOf = tuple[float, float, float, float]  # x0, y0, x1, y1


@dataclass(frozen=True)
class Outline:
    """A box in pixels of a picture, and how it is drawn: outlined in black, so that it shows on any background."""

    box: BoxOf
    colour: str = "white"
    width: int = 1
    dashed: bool = False


def opened(
    data: str | None, option: str = "--data", pixels: Mapping[str, Any] | None = None, **described: Any
) -> "ImageSet | str":
    """Images to draw over; or a sentence on why they are missing.

    Args:
        pixels: scale and orientation with which they were extracted, if not the usual ones.
        described: split, form and classes, as `open_images` takes them.
        option: of the command that names the images, for the sentence.
    """
    if data is None:
        return f"No images were named, or those of params.yaml are not here; name those that were extracted with {option}."
    try:
        from extract.datasets import open_images
        from extract.datasets.pixels import Pixels
    except ModuleNotFoundError as error:
        return f"Images cannot be read: {error}; install beyondcls[extract]."
    try:
        # What is drawn over has the digest of what was measured, so whatever its extraction allowed is allowed here.
        images = open_images(data, **described, allow_left_out=True, allow_outside=_form(data, described) == "csv")
        images = images.with_pixels(Pixels.of(pixels or {}))
        problems = images.all_problems()
    except BeyondClsError as error:
        return f"The images of {data} cannot be read: {error}"
    if problems:
        return f"{data} has {len(problems)} problem(s), so it is not certain which map is of which image: {problems[0]}"
    return images


def _form(data: str, described: Mapping[str, Any]) -> str:
    from extract.datasets import form_of

    return described.get("form") or form_of(data, described.get("split"))


def fitted(box: Sequence[float], side: int = SIDE) -> tuple[int, int]:
    """Width and height at which a part of an image is drawn."""
    across, down = box[2] - box[0], box[3] - box[1]
    scale = side / max(across, down)
    return max(1, round(across * scale)), max(1, round(down * scale))


def within(boxes: Iterable[Sequence[float]], part: Sequence[float], size: tuple[int, int]) -> list[BoxOf]:
    """Boxes of an image in the pixels of a picture of a part of it; those that reach into the picture."""
    left, top, right, bottom = part
    width, height = size
    across, down = width / (right - left), height / (bottom - top)
    moved = [((x0 - left) * across, (y0 - top) * down, (x1 - left) * across, (y1 - top) * down) for x0, y0, x1, y1 in boxes]
    return [(x0, y0, x1, y1) for x0, y0, x1, y1 in moved if x0 < width and y0 < height and x1 > 0 and y1 > 0]


def uri(picture: UInt8[np.ndarray, "H W 3"], outlines: Iterable[Outline] = (), lossless: bool = False) -> str:
    """The picture with outlines, as a data URI; `lossless` is for flat colours, which it makes smaller."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    limits = (image.width - 2, image.height - 2) * 2
    for outline in outlines:
        x0, y0, x1, y1 = (round(min(max(at, 1), limit)) for at, limit in zip(outline.box, limits, strict=True))
        x1, y1 = max(x0, x1), max(y0, y1)
        for colour, around in (("black", 1), (outline.colour, 0)):
            corners = (x0 - around, y0 - around, x1 + around, y1 + around)
            _rectangle(draw, corners, colour, outline.width + 2 * around, outline.dashed)
    target = io.BytesIO()
    image.save(target, format="WEBP", quality=QUALITY, method=6, use_sharp_yuv=True, lossless=lossless)
    return "data:image/webp;base64," + base64.b64encode(target.getvalue()).decode("ascii")


def _rectangle(draw: ImageDraw.ImageDraw, corners: tuple[int, int, int, int], colour: str, width: int, dashed: bool) -> None:
    """A border of `width` pixels inside of the corners."""
    if not dashed:
        draw.rectangle(corners, outline=colour, width=width)
        return
    x0, y0, x1, y1 = corners
    width -= 1
    for begin in range(x0, x1 + 1, 2 * DASH):
        end = min(begin + DASH, x1)
        draw.rectangle((begin, y0, end, min(y0 + width, y1)), fill=colour)
        draw.rectangle((begin, max(y1 - width, y0), end, y1), fill=colour)
    for begin in range(y0, y1 + 1, 2 * DASH):
        end = min(begin + DASH, y1)
        draw.rectangle((x0, begin, min(x0 + width, x1), end), fill=colour)
        draw.rectangle((max(x1 - width, x0), begin, x1, end), fill=colour)
