"""Predictions of a head for patches: the class of each pixel of an image, drawn over it with the names of classes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16, UInt8
from PIL import Image, ImageDraw

from pipelines.live.overlay import font_for
from pipelines.live.segmenter import Segmenter
from pipelines.predictions.images import Predicted, Predictor, enlarge
from probe.segmentation.saved_maps import UNSEEN, palette, save_label_map
from store.truths import VOID

FOLDER = "label-maps"
OPACITY = 0.5  # of colours


@dataclass(frozen=True, eq=False)
class Segmented(Predicted):
    """The class of each pixel of an image, -1 where the encoder does not see it."""

    image: Image.Image
    label_map: Int16[np.ndarray, "h w"]
    classes: Sequence[str]

    def to_rows(self) -> list[dict[str, Any]]:
        shares = _shares(self.label_map[self.label_map >= 0])
        return [{"class": self.classes[label], "label": label, "share": round(share, 6)} for label, share in shares.items()]

    def to_lines(self) -> list[str]:
        shares = _shares(self.label_map[self.label_map >= 0])
        return [f"  {100 * share:5.1f} %  {self.classes[label]}" for label, share in shares.items()]

    def pictures(self) -> dict[str, Image.Image]:
        picture = enlarge(self.image)
        enlarged_map = Image.fromarray(self.label_map).resize(picture.size, Image.Resampling.NEAREST)
        drawn = draw_label_map(np.asarray(picture), np.asarray(enlarged_map).astype(np.int16), self.classes)
        return {"overlay": Image.fromarray(drawn)}


@dataclass(frozen=True)
class LabelMapPredictor(Predictor):
    """A head for patches on its encoder; keeps a PNG of each image, in its pixels: indices of classes, 255 not seen."""

    columns = ("class", "label", "share")

    model: Segmenter

    def predict(self, images: Sequence[Image.Image]) -> Iterator[Predicted | str]:
        for image, label_map in zip(images, self.model.label_maps(images), strict=True):
            yield Segmented(image, label_map, self.model.classes)

    def keep(self, folder: Path, number: str, file: Path, result: Predicted) -> dict[str, str]:
        assert isinstance(result, Segmented)
        target = folder / FOLDER / f"{number}-{file.stem}.png"
        save_label_map(target, result.label_map, len(result.classes))
        return {"label_map": str(target)}


def draw_label_map(
    picture: UInt8[np.ndarray, "H W 3"], label_map: Int16[np.ndarray, "H W"], classes: Sequence[str]
) -> UInt8[np.ndarray, "H _W2 3"]:
    """The picture tinted in the colour of each pixel's class, and next to it the names of the classes that occur.

    The largest class is named first. Pixels of -1 stay as they are.

    Args:
        classes: names by label.
    """
    labelled = label_map != VOID
    tinted = picture.astype(np.float32)
    tinted[labelled] = (1 - OPACITY) * tinted[labelled] + OPACITY * _colours(label_map[labelled])
    drawn = np.round(tinted).astype(np.uint8)
    return np.concatenate([drawn, _legend([*_shares(label_map[labelled])], classes, picture.shape[:2])], 1)


def _shares(labels: Int16[np.ndarray, "n"]) -> dict[int, float]:
    """The share of each label that occurs, the largest first, and of equal ones the lower label."""
    present, counts = np.unique(labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return dict(zip(present[order].tolist(), (counts[order] / len(labels)).tolist(), strict=True))


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
