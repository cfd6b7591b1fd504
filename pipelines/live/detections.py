"""A detector on its live encoder: from pictures to boxes and masks, without a store in between."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from extract.encoders import Encoder
from pipelines.live.online import check_encoder, described_block, described_classes, grid_of, load_recorded
from pipelines.live.pictures import Picture
from pipelines.live.segmenter import OnPatches
from probe.detection.detected import Detected, in_original
from probe.detection.detector import Detector, load_detector_with
from store import BeyondClsError


def online_detector(
    encoder: Encoder | str, detector: str | Path | Detector, *, description: Mapping[str, Any] | None = None, **options: Any
) -> "OnlineDetector":
    """A detector on its encoder, as a module from images to detections.

    Example::

        model = online_detector("mae-b16", "detection/mae/trained/seed0")
        for detected in model.detect(["cat.jpg", "dog.jpg"]):
            print(detected.labels, detected.boxes)

    Args:
        encoder: the one that the detector was trained on, or its name for `load_encoder`.
        detector: path of a trained detector (`load_detector`), or the detector itself.
        description: of a detector that is given as such: what its JSON file would hold. Without one, tokens are those of the
            block at which the encoder is read, and nothing is compared.
        options: of `load_encoder`, for an encoder that is given by its name. By default it sees of an image what the detector's
            features show.

    Raises:
        BeyondClsError: no readable detector, or another encoder than the one that it was trained on (weights, architecture,
            transform, grid of patches).
    """
    if not isinstance(detector, Detector):
        if description is not None:
            raise BeyondClsError(f"{detector} has its own description; leave out description")
        detector, description = load_detector_with(detector)
    return OnlineDetector(load_recorded(encoder, description or {}, options), detector, description)


class OnlineDetector(OnPatches):
    """A detector with its encoder in front, in evaluation mode and on the encoder's device.

    Attributes:
        classes: names in order of labels; None if they are not known.

    Raises:
        BeyondClsError: as `online_detector`.
    """

    def __init__(self, encoder: Encoder, detector: Detector, description: Mapping[str, Any] | None = None):
        about = description or {}
        if description is not None:
            check_encoder(encoder, about)
        super().__init__(encoder, encoder.block if description is None else described_block(encoder, about))
        self.detector = detector.eval().to(encoder.device)
        self.classes = described_classes(about, detector.n_classes)
        black = self.tokens(*self.black())
        grid = grid_of(encoder, black.shape[1])
        if grid != detector.grid or black.shape[2] != detector.dim:
            ours, theirs = (" x ".join(map(str, one or ("?",))) for one in (grid, detector.grid))
            raise BeyondClsError(
                f"{encoder.name} gives {ours} patches, {black.shape[2]} wide; the detector was trained on {theirs}, "
                f"{detector.dim} wide: load the encoder and the input size of its features"
            )

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "B 3 H W"]) -> list[dict[str, Tensor]]:
        """Detections in the frame of the patches, as `Detector` gives them, of images that are transformed already."""
        detected = self.detector(self.tokens(images))
        assert isinstance(detected, list)
        return detected

    def detect(self, pictures: Picture | Sequence[Picture]) -> list[Detected]:
        """What is found in pictures or their files, in pixels of each.

        Raises:
            BeyondClsError: there is no picture, or one cannot be read; names it.
        """
        views, shown = self.cut(pictures)
        return [
            in_original(one, crop.box, crop.flip, self.detector.frame, size)
            for one, (crop, size) in zip(self(views), shown, strict=True)
        ]
