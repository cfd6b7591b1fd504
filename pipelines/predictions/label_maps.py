"""Predictions of a head for patches: the class of each pixel of an image."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16
from PIL import Image

from pipelines.live.label_map import draw_label_map
from pipelines.live.segmenter import Segmenter
from pipelines.predictions.predictor import Predicted, Predictor, enlarged
from probe.segmentation.saved_maps import save_label_map

FOLDER = "label-maps"


@dataclass(frozen=True, eq=False)
class Segmented(Predicted):
    """The class of each pixel of an image, -1 where the encoder does not see it."""

    image: Image.Image
    label_map: Int16[np.ndarray, "h w"]
    classes: Sequence[str]

    def shares(self) -> list[tuple[float, int]]:
        """Shares of the pixels that are seen, with their labels: of the classes that occur, the largest first."""
        seen = self.label_map[self.label_map >= 0]
        counts = np.bincount(seen, minlength=len(self.classes))
        order = np.argsort(-counts, kind="stable").tolist()
        return [(float(counts[label] / len(seen)), label) for label in order if counts[label]]

    def to_rows(self) -> list[dict[str, Any]]:
        return [{"class": self.classes[label], "label": label, "share": round(s, 6)} for s, label in self.shares()]

    def to_lines(self) -> list[str]:
        return [f"  {100 * share:5.1f} %  {self.classes[label]}" for share, label in self.shares()]

    def pictures(self) -> dict[str, Image.Image]:
        picture = enlarged(self.image)
        enlarged_map = Image.fromarray(self.label_map).resize(picture.size, Image.Resampling.NEAREST)
        drawn = draw_label_map(np.asarray(picture), np.asarray(enlarged_map).astype(np.int16), self.classes)
        return {"overlay": Image.fromarray(drawn)}


@dataclass(frozen=True)
class LabelMaps(Predictor):
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
