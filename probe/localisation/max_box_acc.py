"""MaxBoxAcc and MaxBoxAccV2: the share of images whose object is found, at the threshold that is best over all images."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from probe.localisation.boxes import BRIGHTEST, Candidates, candidates, evaluation_map, iou
from probe.subsets import without_each

IOUS = (0.3, 0.5, 0.7)
IOU_OF_V1 = 0.5
STEP = 0.001
THRESHOLDS = np.arange(0, 1, STEP)
# A pixel is in the foreground if it is brighter than its level; every level has a threshold.
LEVELS = (THRESHOLDS * BRIGHTEST).astype(np.int64)
IMAGES_AT_ONCE = 64


@dataclass(frozen=True)
class Localised:
    """How well score maps localise.

    Attributes:
        max_box_acc_v2: mean over IOUS of `by_iou`, percent.
        by_iou: for each of IOUS, percentage of images whose object is found at the best threshold.
        thresholds: those thresholds, as shares of the map's maximum; the lowest of equally good ones.
        max_box_acc: percentage with the box of the largest contour only, IoU 0.5.
        threshold: the best threshold of `max_box_acc`.
        without: the same of the images without each group in turn (`probe.subsets`).
    """

    max_box_acc_v2: float
    by_iou: tuple[float, ...]
    thresholds: tuple[float, ...]
    max_box_acc: float
    threshold: float
    without: tuple["Localised", ...] = ()


def finds(boxes: Candidates, truth: Int[np.ndarray, "m 4"]) -> Bool[np.ndarray, "4 255"]:
    """Whether an image's object is found at each level: with each of IOUS by any box of a map, and by that of its largest
    contour with IOU_OF_V1. Not where there is no true box.
    """
    highest = iou(boxes.boxes, truth).max(1, initial=0)
    best = np.stack([np.maximum.reduceat(highest, boxes.starts), highest[boxes.largest]])[:, boxes.of_level]
    return np.concatenate([best[0] >= np.array(IOUS)[:, None], best[1:] >= IOU_OF_V1])


def _find(
    maps: Float[np.ndarray, "n h w"], truths: Sequence[Int[np.ndarray, "_m 4"]], size: int
) -> list[Bool[np.ndarray, "4 255"]]:
    """`finds` of several images, from their score maps."""
    return [finds(candidates(evaluation_map(m, size)), t) for m, t in zip(maps, truths, strict=True)]


def measure(
    maps: Float[np.ndarray, "N h w"],
    truths: Sequence[Int[np.ndarray, "_m 4"]],
    size: int,
    map_function: Callable[..., Iterable[Any]] = map,
    progress: Callable[[int], object] = lambda n: None,
) -> Localised:
    """Measure score maps of N images.

    A threshold finds an image's object if a candidate box of the map (`candidates`) has an IoU of at least 0.3 (0.5, 0.7) with
    any box of the image, of any class. V2 takes the boxes of all contours and averages the three; the first version takes the
    box of the largest contour, and only 0.5. The best threshold, of 0, 0.001, …, 0.999 of the map's maximum, is the same for
    all images, a different one for each IoU, and chosen on the images that are measured. Maps are integers 0…255 when they are
    thresholded, so the 1,000 thresholds are 255 different ones.

    Args:
        truths: of each image, its boxes in the evaluation frame; an image without any counts as one whose object is not found.
        size: of the evaluation frame.
        map_function: `map`, or that of an executor. Threads don't help: OpenCV's calls are too short to share an interpreter.
        progress: called with the number of images since its last call.

    Source: Choe et al. 2020, "Evaluating weakly supervised object localization methods right"; clovaai/wsolevaluation.
    """
    parts = [slice(begin, begin + IMAGES_AT_ONCE) for begin in range(0, len(maps), IMAGES_AT_ONCE)]
    found = list[Bool[np.ndarray, "4 255"]]()
    for of_part in map_function(_find, [maps[p] for p in parts], [truths[p] for p in parts], [size] * len(parts)):
        found += of_part
        progress(len(of_part))
    return at_best_thresholds(found)


def measure_one(scores: Float[np.ndarray, "h w"], truths: Sequence[Int[np.ndarray, "_m 4"]], size: int) -> Localised:
    """`measure` with one map for all images."""
    boxes = candidates(evaluation_map(scores, size))
    return at_best_thresholds([finds(boxes, truth) for truth in truths])


def at_best_thresholds(of_images: Sequence[Bool[np.ndarray, "4 255"]]) -> Localised:
    """The result over images, and without each group of them, by `finds` of each."""
    found = np.stack(of_images)

    def of_chosen(chosen: Bool[np.ndarray, "N"]) -> Localised:
        every = found[chosen].sum(0)[:, LEVELS]  # [IoUs and v1, thresholds]
        *by_iou, largest = (100 * every.max(1) / chosen.sum()).tolist()
        *thresholds, threshold = THRESHOLDS[every.argmax(1)].tolist()
        return Localised(sum(by_iou) / len(by_iou), tuple(by_iou), tuple(thresholds), largest, threshold)

    return replace(of_chosen(np.full(len(found), True)), without=tuple(without_each(len(found), of_chosen)))


def predicted_box(scores: Float[np.ndarray, "h w"], threshold: float, size: int) -> tuple[int, int, int, int]:
    """The box that MaxBoxAcc takes of a map: that of the largest contour at a threshold, a share of the map's maximum."""
    bright = evaluation_map(scores, size) > int(threshold * BRIGHTEST)
    found = candidates(bright.astype(np.uint8) * BRIGHTEST)
    x0, y0, x1, y1 = found.boxes[found.largest[found.of_level[0]]].tolist()
    return x0, y0, x1, y1
