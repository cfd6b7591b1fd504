"""Predictions of a probe of whole images: the probability of each class, and where the head looks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from pipelines.live.online import Online
from pipelines.live.overlay import blend, cut_out
from pipelines.predictions.images import DRAWN, Predicted, Predictor


@dataclass(frozen=True)
class Classified(Predicted):
    """The probability of each class, by label.

    Attributes:
        top: number of classes that are shown.
        threshold: for several labels an image: the probability from which on a class is a yes; None for one label.
        draw: the image as the encoder sees it, and the same overlaid with the head's weights if there are any.
    """

    probabilities: Sequence[float]
    classes: Sequence[str]
    top: int = 5
    threshold: float | None = None
    draw: Callable[[], dict[str, Image.Image]] = dict

    def ranked(self) -> list[tuple[float, int]]:
        """The highest probabilities with their labels; among equal ones the lower label first."""
        return sorted(((p, label) for label, p in enumerate(self.probabilities)), key=lambda pair: -pair[0])[: self.top]

    def to_rows(self) -> list[dict[str, Any]]:
        rows = [{"class": self.classes[label], "label": label, "probability": round(p, 6)} for p, label in self.ranked()]
        if self.threshold is None:
            return rows
        return [{**row, "yes": p >= self.threshold} for row, (p, _) in zip(rows, self.ranked(), strict=True)]

    def to_lines(self) -> list[str]:
        mark = lambda p: "" if self.threshold is None else "yes  " if p >= self.threshold else "no   "  # noqa: E731
        return [f"  {100 * p:5.1f} %  {mark(p)}{self.classes[label]}" for p, label in self.ranked()]

    def pictures(self) -> dict[str, Image.Image]:
        return self.draw()


@dataclass(frozen=True)
class Classes(Predictor):
    """A probe on its encoder. `top` and `threshold`: as of `Classified`."""

    columns = ("class", "label", "probability", "yes")

    model: Online
    top: int = 5
    threshold: float = 0.5

    def predict(self, images: Sequence[Image.Image]) -> Iterator[Predicted | str]:
        logits, maps = self.model(*self.model.prepare(images))
        probabilities = (logits.sigmoid() if self.model.multilabel else logits.softmax(-1)).cpu()
        names = self.model.classes or [f"class {label}" for label in range(self.model.n_classes)]
        threshold = self.threshold if self.model.multilabel else None
        for i, image in enumerate(images):
            if not probabilities[i].isfinite().all():
                yield "the head gives NaN, as its attention gives no mass to patches"
                continue
            weights = None if maps is None else maps[i].cpu()
            draw = lambda image=image, weights=weights: self._pictures(image, weights)  # noqa: E731
            yield Classified(probabilities[i].tolist(), names, self.top, threshold, draw)

    def _pictures(self, image: Image.Image, weights: torch.Tensor | None) -> dict[str, Image.Image]:
        """What the encoder sees, and the weights over it."""
        height, width = self.model.encoder.config["input_size"][1:]
        scale = max(1, DRAWN / min(height, width))
        crop = self.model.encoder.views.cut(image, "", 0)[1]
        picture = cut_out(image, crop.box, (round(width * scale), round(height * scale)))
        drawn = {"crop": Image.fromarray(picture)}
        if weights is not None:
            drawn["overlay"] = Image.fromarray(blend(picture, weights.double().numpy()))
        return drawn
