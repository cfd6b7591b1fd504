"""Drawing boxes and masks of objects on a picture."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw

from pipelines.live.overlay import font_for

OPACITY = 0.45  # of masks
COLOURS = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
MARGIN = 2  # pixels around a name


def draw_objects(
    picture: UInt8[np.ndarray, "H W 3"],
    boxes: Float[np.ndarray, "n 4"],
    labels: Sequence[int],
    classes: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    masks: Bool[np.ndarray, "n H W"] | None = None,
) -> UInt8[np.ndarray, "H W 3"]:
    """The picture with objects: masks tinted, boxes outlined and named, in a colour for each class.

    Args:
        boxes: x0, y0, x1, y1 in pixels of the picture, the most important first: it is drawn last.
        classes: names by label; numbers are written without them.
        scores: 0…1, written in percent beside the names.
    """
    drawn = picture.astype(np.float32)
    order = range(len(boxes) - 1, -1, -1)
    for i in order if masks is not None else ():
        drawn[masks[i]] = (1 - OPACITY) * drawn[masks[i]] + OPACITY * np.array(_colour(labels[i]))  # type: ignore[index]
    image = Image.fromarray(np.round(drawn).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    width, font = max(1, round(min(image.size) / 150)), font_for((image.height, image.width))
    for i in order:
        x0, y0, x1, y1 = np.round(boxes[i]).astype(int).tolist()
        colour = _colour(labels[i])
        draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=colour, width=width)
        name = str(labels[i]) if classes is None else classes[labels[i]]
        text = name if scores is None else f"{name} {100 * scores[i]:.0f} %"
        left, top, right, bottom = draw.textbbox((x0 + MARGIN, y0 + MARGIN), text, font=font)
        draw.rectangle((left - MARGIN, top - MARGIN, right + MARGIN, bottom + MARGIN), fill=colour)
        draw.text((x0 + MARGIN, y0 + MARGIN), text, fill="white", font=font)
    return np.asarray(image)


def _colour(label: int) -> tuple[int, int, int]:
    """The colour of a class, 0…255."""
    red, green, blue = (round(255 * share) for share in COLOURS[label % len(COLOURS)])
    return red, green, blue
