"""Predictions of a detector: boxes of objects with their classes and scores, and their masks."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw

from pipelines.live.detections import OnlineDetector
from pipelines.live.overlay import font_for
from pipelines.predictions.images import Predicted, Predictor, enlarge
from probe.detection.detected import Detected
from probe.detection.sets import image_numbers
from store.truths.rle import decode

FILE = "detections.json"
CORNERS = ("x0", "y0", "x1", "y1")
OPACITY = 0.45  # of masks
COLOURS = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
MARGIN = 2  # pixels around a name


@dataclass(frozen=True, eq=False)
class FoundObjects(Predicted):
    """What was found in an image. Those of a score of `threshold` or more are printed and drawn; rows have all."""

    image: Image.Image
    detected: Detected
    classes: Sequence[str]
    threshold: float

    @property
    def n_shown(self) -> int:
        """Objects that are printed and drawn: the first ones, as the best come first."""
        return int((self.detected.scores >= self.threshold).sum())

    def to_rows(self) -> list[dict[str, Any]]:
        rows = self._objects()
        for row in rows:
            row |= zip(CORNERS, row.pop("box"), strict=True)
        return rows

    def _objects(self, n: int | None = None) -> list[dict[str, Any]]:
        """The first n, or all."""
        found = self.detected
        columns = (values[:n].tolist() for values in (found.labels, found.scores, found.boxes))
        return [
            {"class": self.classes[k], "label": k, "score": round(score, 6), "box": [round(corner, 2) for corner in box]}
            for k, score, box in zip(*columns, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"objects": self._objects(self.n_shown)}

    def to_lines(self) -> list[str]:
        lines = [
            f"  {100 * one['score']:5.1f} %  {one['class']}  {', '.join(f'{corner:.0f}' for corner in one['box'])}"
            for one in self._objects(self.n_shown)
        ]
        n_left = len(self.detected.labels) - len(lines)
        return lines or [f"  nothing with a score of {100 * self.threshold:g} % or more; {n_left:,} below"]

    def pictures(self) -> dict[str, Image.Image]:
        picture, n, found = enlarge(self.image), self.n_shown, self.detected
        masks = None
        if found.counts is not None:
            decoded = [Image.fromarray(decode(counts, found.size)).resize(picture.size) for counts in found.counts[:n]]
            masks = np.array([np.asarray(mask) for mask in decoded], bool).reshape(n, picture.height, picture.width)
        drawn = draw_objects(
            np.asarray(picture),
            found.boxes[:n] * (picture.width / self.image.width),
            found.labels[:n].tolist(),
            self.classes,
            found.scores[:n].tolist(),
            masks,
        )
        return {"overlay": Image.fromarray(drawn)}


@dataclass
class Objects(Predictor):
    """A detector on its encoder; keeps all that it finds in COCO's format of results. `threshold`: as of `FoundObjects`."""

    columns = ("class", "label", "score", *CORNERS)

    model: OnlineDetector
    threshold: float = 0.5
    _kept: list[tuple[Path, Detected]] = field(default_factory=list)

    def predict(self, images: Sequence[Image.Image]) -> Iterator[Predicted | str]:
        names = self.model.classes or [str(label) for label in range(self.model.detector.n_classes)]
        for image, detected in zip(images, self.model.detect(images), strict=True):
            yield FoundObjects(image, detected, names, self.threshold)

    def keep(self, folder: Path, number: str, file: Path, result: Predicted) -> dict[str, str]:
        assert isinstance(result, FoundObjects)
        self._kept.append((file, result.detected))
        return {}

    def finish(self, folder: Path) -> None:
        """Write results in COCO's format; an image's number is its name, as of COCO's images, or else counts from 1."""
        numbers = image_numbers([file.name for file, _ in self._kept], range(1, len(self._kept) + 1))
        entries = [
            {**entry, "file_name": str(file)}
            for (file, detected), number in zip(self._kept, numbers, strict=True)
            for entry in detected.to_coco(number)
        ]
        (folder / FILE).write_text(json.dumps(entries) + "\n")


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
        scores: 0…1, written in percent next to the names.
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
