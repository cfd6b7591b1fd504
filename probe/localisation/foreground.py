"""How much of the weight that a head or attention gives to patches falls on objects, compared with their share of the area."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from probe.localisation.maps import ScoreMaps
from probe.localisation.truths import has_boxes
from probe.result_files import over_seeds
from probe.subsets import without_each
from probe.views import View
from store import BeyondClsError, FeatureStore
from store.truths.view import boxes_in_view, masks_in_view

PIXELS = 8  # of a patch along each side, at whose centres truths are read
Truth = Literal["label maps", "masks", "boxes"]


class NothingShown(BeyondClsError):
    """No view shows any foreground."""


@dataclass(frozen=True, eq=False)
class Foreground:
    """Which part of each patch is foreground, of the images that show any.

    Attributes:
        truth: what says so.
        rows: of the images in their feature set.
        share: of each patch, 0…1.
        n_without: images that show no foreground, and are left out.
    """

    truth: Truth
    rows: Int[np.ndarray, "N"]
    share: Float[np.ndarray, "N h w"]
    n_without: int


def class_names(text: str | None) -> list[str]:
    """The names in a text with commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def foreground_of(
    store: FeatureStore,
    classes: Sequence[str] = (),
    view: int = 0,
    rows: Int[np.ndarray, "n"] | None = None,
    progress: Callable[[int], object] = lambda n: None,
) -> Foreground:
    """The pixels of these classes in label maps. Without label maps, or classes, objects: their masks, or boxes without masks.

    Args:
        classes: names; all objects, if none are given.
        rows: of the images to measure; all that are valid by default.
        progress: called with the number of images since the last call.

    Raises:
        NothingShown: there is no foreground in any image.
        BeyondClsError: a class that the set does not have, label maps alone without a choice of classes, or neither label maps
            nor objects.
    """
    store.check_evaluation_crop()
    truth, labels, seen = _truth(store, classes), _labels(store, classes), View(store, view)
    rows = np.flatnonzero(store.valid) if rows is None else rows
    share = np.zeros((len(rows), *store.grid))
    for i, row in enumerate(rows.tolist()):
        mask = _in_view(seen, row, truth, labels, (store.grid[0] * PIXELS, store.grid[1] * PIXELS))
        share[i] = mask.reshape(store.grid[0], PIXELS, store.grid[1], PIXELS).mean((1, 3))
        progress(1)
    shows_any = share.any((1, 2))
    if not shows_any.any():
        remedy = "choose other classes" if classes else "extract whole images: --crop-mode squash --crop-pct 1"
        raise NothingShown(f"no view of {store.where} shows {', '.join(classes) or 'an object'}; {remedy}")
    return Foreground(truth, rows[shows_any], share[shows_any], int((~shows_any).sum()))


def _truth(store: FeatureStore, classes: Sequence[str]) -> Truth:
    """What is compared with."""
    has_maps = "segmentation" in store.spec.truths
    if has_maps and classes:
        return "label maps"
    if "instances" in store.spec.truths:
        return "masks" if store.instances.has_masks else "boxes"
    if has_boxes(store):
        return "boxes"
    if has_maps:
        known = ", ".join(store.segmentation.classes)
        raise BeyondClsError(f"every labelled pixel would be foreground; choose classes of {known}")
    raise BeyondClsError(
        f"{store.where} has neither label maps nor objects, so nothing says what is foreground; extract images that have them, "
        "with --truths segmentation or --truths instances"
    )


def _labels(store: FeatureStore, classes: Sequence[str]) -> Int[np.ndarray, "k"] | None:
    """Labels of classes; None for all of them."""
    if not classes:
        return None
    truths = store.spec.truths
    if "segmentation" in truths:
        known: Sequence[str] = store.segmentation.classes
    else:
        known = store.instances.classes if "instances" in truths else store.attributes.get("classes") or ()
    if unknown := [name for name in classes if name not in known]:
        raise BeyondClsError(f"{store.where} has no class {unknown[0]!r}; it has: {', '.join(known) or 'none with a name'}")
    return np.array([list(known).index(name) for name in classes])


def _in_view(
    seen: View, row: int, truth: Truth, labels: Int[np.ndarray, "k"] | None, size: tuple[int, int]
) -> Bool[np.ndarray, "rows columns"]:
    """Which pixels of a view of this size are foreground, by what is at their centres."""
    store = seen.store
    if truth == "label maps" and labels is not None:
        return masks_in_view(np.isin(store.segmentation.label_map(row), labels)[None], *seen.shows(row), size)[0]
    image = store.instances.of(row) if "instances" in store.spec.truths else None
    boxes, box_labels = store.boxes(row) if image is None else (image.boxes, image.labels)
    chosen = np.ones(len(boxes), bool) if labels is None else np.isin(box_labels, labels)
    if image is not None and truth == "masks":
        return masks_in_view(np.any(image.masks()[chosen], 0, keepdims=True), *seen.shows(row), size)[0]
    down, across = (np.arange(side) + 0.5 for side in size)
    shown = np.zeros(size, bool)
    for x0, y0, x1, y1 in boxes_in_view(boxes[chosen], *seen.shows(row), size):
        shown |= ((down >= y0) & (down < y1))[:, None] & (across >= x0) & (across < x1)
    return shown


def weight_on(maps: Sequence[Float[np.ndarray, "N h w"]], foreground: Foreground) -> dict[str, Any]:
    """Percent of the weight of maps that is on the foreground: the mean over images, one value a seed; and that of the area.

    `chance` is the share of the area: what equal weights would put on the foreground. `gain` is the mean over images of share
    divided by area; 1 is chance. Images without weight are in neither.
    """
    area, shares = foreground.share.mean((1, 2)), []
    for weights in maps:
        total = weights.sum((1, 2), dtype=np.float64)
        on = (weights * foreground.share).sum((1, 2))
        shares.append(np.divide(on, total, out=np.full(len(weights), np.nan), where=total > 0))

    def measured(of_seeds: Sequence[Float[np.ndarray, "N"]]) -> dict[str, Any]:
        without = without_each(len(area), lambda chosen: [_known_mean(values[chosen]) for values in of_seeds])
        return over_seeds([_known_mean(values) for values in of_seeds], np.transpose(without))

    return {
        "share": measured([100 * share for share in shares]),
        "chance": 100 * float(area.mean()),
        "gain": measured([share / area for share in shares]),
        "n_images": len(foreground.rows),
        "n_without": foreground.n_without,
    }


def _known_mean(values: Float[np.ndarray, "N"]) -> float:
    """Of those that are known; NaN where none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def measure_foreground(maps: ScoreMaps, foreground: Foreground) -> dict[str, Any]:
    """An entry of `foreground` in description.json: `weight_on`, of named maps."""
    return {"source": maps.source, "name": maps.name, "seeds": list(maps.seeds), **weight_on(maps.maps, foreground)}
