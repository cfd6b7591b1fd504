"""What a detector finds, in pixels of the originals, and in COCO's format of results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torchvision.models.detection.roi_heads import paste_masks_in_image

from probe.detection.detector import Detector
from probe.detection.targets import boxes_from_view, cut_to, has_area
from probe.views import View
from store import FeatureStore, Loader
from store.truths.rle import encode
from store.truths.view import Crop

THRESHOLD = 0.5  # of the probability of a pixel of a mask


@dataclass(frozen=True)
class Detected:
    """What was found in one image, best first.

    Attributes:
        labels: classes, from 0.
        scores: 0…1.
        boxes: x0, y0, x1, y1 in pixels of the original, within it.
        counts: COCO's compressed run lengths of their masks, of the original's size; None from a detector without masks.
        size: height and width of the original.
    """

    labels: Int64[np.ndarray, "n"]
    scores: Float32[np.ndarray, "n"]
    boxes: Float32[np.ndarray, "n 4"]
    counts: tuple[bytes, ...] | None
    size: tuple[int, int]

    def to_coco(self, image_id: int) -> list[dict[str, Any]]:
        """Entries of COCO's format of results; `category_id` counts classes from 1, boxes are x, y, width, height."""
        widths = np.concatenate([self.boxes[:, :2], self.boxes[:, 2:] - self.boxes[:, :2]], 1)
        entries: list[dict[str, Any]] = [
            {"image_id": image_id, "category_id": label + 1, "bbox": box, "score": score}
            for label, box, score in zip(self.labels.tolist(), widths.tolist(), self.scores.tolist(), strict=True)
        ]
        for entry, counts in zip(entries, self.counts or (), strict=False):
            entry["segmentation"] = {"size": list(self.size), "counts": counts.decode("ascii")}
        return entries


def detections(
    detector: Detector,
    store: FeatureStore,
    rows: np.ndarray,
    *,
    view: int = 0,
    block: int | None = None,
    batch_size: int = 16,
    device: str | torch.device = "cpu",
    placement: Any = "auto",
) -> Iterator[Detected]:
    """What a detector finds in images of a feature set, in the order of `rows`."""
    arrays, placed = {"patch": store.tokens("patch", block, view)}, {"device": device, "placement": placement}
    loader = Loader(arrays, np.zeros(len(store), np.int64), rows, batch_size, shuffle=False, **placed)
    seen = View(store, view)
    for batch in loader.epoch():
        with torch.no_grad():
            batch_of_detections = detector(batch["patch"])
        for row, entry in zip(batch["row"].tolist(), batch_of_detections, strict=True):
            yield in_original(entry, *seen.shows(row), detector.frame, seen.size(row))


def in_original(
    in_frame: Mapping[str, Tensor], crop: Crop, flip: bool, frame: tuple[int, int], size: tuple[int, int]
) -> Detected:
    """One image's detections in the frame of a view, in pixels of the original.

    Masks are drawn into their boxes at the resolution of the original, as torchvision does; boxes are then cut to the image.
    What is entirely outside, as in the border of a padded image, is left out.
    """
    in_frame = {name: values.cpu() for name, values in in_frame.items()}
    boxes = boxes_from_view(in_frame["boxes"].numpy(), crop, flip, frame)
    within = cut_to(boxes, size)
    kept = has_area(within)
    counts = None
    if "masks" in in_frame:
        masks = in_frame["masks"][torch.from_numpy(kept)]
        placed = torch.from_numpy(boxes[kept])
        drawn = paste_masks_in_image(masks.flip(3) if flip else masks, placed, size)[:, 0] > THRESHOLD
        counts = tuple(encode(drawn.numpy()))
    labels, scores = (in_frame[name].numpy()[kept] for name in ("labels", "scores"))
    return Detected(labels - 1, scores, within[kept], counts, size)
