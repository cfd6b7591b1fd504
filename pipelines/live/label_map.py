"""Drawing a label map over a picture, with the names of its classes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int16, UInt8
from PIL import Image, ImageDraw

from pipelines.live.overlay import font_for
from probe.segmentation.saved_maps import UNSEEN, palette
from store.truths import VOID

OPACITY = 0.5


def draw_label_map(
    picture: UInt8[np.ndarray, "H W 3"], label_map: Int16[np.ndarray, "H W"], classes: Sequence[str]
) -> UInt8[np.ndarray, "H _W2 3"]:
    """The picture tinted in the colour of each pixel's class, and beside it the names of the classes that occur.

    The largest class is named first. Pixels of -1 stay as they are.

    Args:
        classes: names by label.
    """
    labelled = label_map != VOID
    tinted = picture.astype(np.float32)
    tinted[labelled] = (1 - OPACITY) * tinted[labelled] + OPACITY * _colours(label_map[labelled])
    drawn = np.round(tinted).astype(np.uint8)
    counts = np.bincount(label_map[labelled], minlength=len(classes))
    present = [label for label in np.argsort(-counts, kind="stable").tolist() if counts[label]]
    return np.concatenate([drawn, _legend(present, classes, picture.shape[:2])], 1)


def _legend(labels: Sequence[int], classes: Sequence[str], size: tuple[int, int]) -> UInt8[np.ndarray, "H _W 3"]:
    """Names with a square in their colour, in as many columns as the height of the picture requires."""
    font = font_for(size)
    line = round(1.5 * font.size)
    per_column = max(1, (size[0] - line // 2) // line)
    columns = [labels[begin : begin + per_column] for begin in range(0, len(labels), per_column)]
    widths = [round(max(font.getlength(classes[label]) for label in column)) + 3 * line // 2 for column in columns]
    legend = Image.new("RGB", (sum(widths) + line // 2, size[0]), "white")
    draw, left = ImageDraw.Draw(legend), line // 2
    for column, width in zip(columns, widths, strict=True):
        for i, label in enumerate(column):
            top = line // 4 + i * line
            colour = tuple(_colours(np.array([label]))[0].tolist())
            draw.rectangle((left, top + line // 6, left + 2 * line // 3, top + 5 * line // 6), fill=colour, outline="black")
            draw.text((left + line, top + line // 2), classes[label], fill="black", font=font, anchor="lm")
        left += width
    return np.asarray(legend)


def _colours(labels: np.ndarray) -> UInt8[np.ndarray, "n 3"]:
    """The colours of labels, those of saved label maps."""
    return palette()[labels % UNSEEN]
