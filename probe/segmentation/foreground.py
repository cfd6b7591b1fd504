"""How much of the weight that a head or attention gives to patches falls on objects, compared with their share of the area."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from probe.localisation.maps import ScoreMaps
from probe.results import over_seeds
from store import BeyondClsError, FeatureStore
from store.truths.view import masks_in_view

PIXELS = 8  # of a patch along each side, at whose centres masks are read


@dataclass(frozen=True, eq=False)
class Foreground:
    """Which part of each patch is foreground, of the images that show any.

    Attributes:
        rows: of the images in their feature set.
        share: of each patch, 0…1.
        n_without: images that show no foreground, and are left out.
    """

    rows: Int[np.ndarray, "N"]
    share: Float[np.ndarray, "N h w"]
    n_without: int


def foreground_of(store: FeatureStore, classes: Sequence[str] = (), view: int = 0) -> Foreground:
    """The pixels of these classes in label maps, or in the masks of instances where the set has no label maps.

    Args:
        classes: names; all instances, if none are given.

    Raises:
        BeyondClsError: a class that the set does not have, label maps without a choice of classes, or no foreground in any
            image; StoreError: the set has neither label maps nor masks.
    """
    by_map = "segmentation" in store.spec.truths
    known = store.segmentation.classes if by_map else store.instances.classes
    if unknown := [name for name in classes if name not in known]:
        raise BeyondClsError(f"{store.where} has no class {unknown[0]!r}; it has: {', '.join(known)}")
    if by_map and not classes:
        raise BeyondClsError(f"every labelled pixel would be foreground; choose classes of {', '.join(known)}")
    labels = np.array([known.index(name) for name in classes] or range(len(known)))
    crops = store.array(f"images/crop/view{view}").all()
    flips = store.array(f"images/flip/view{view}").all().astype(bool)
    rows, shares = np.flatnonzero(store.valid), []
    size = (store.grid[0] * PIXELS, store.grid[1] * PIXELS)
    for row in rows.tolist():
        mask = masks_in_view(_mask(store, row, labels, by_map)[None], crops[row], bool(flips[row]), size)[0]
        shares.append(mask.reshape(store.grid[0], PIXELS, store.grid[1], PIXELS).mean((1, 3)))
    share = np.stack(shares)
    shows_any = share.any((1, 2))
    if not shows_any.any():
        raise BeyondClsError(f"no image of {store.where} shows {', '.join(classes) or 'an object'}; choose other classes")
    return Foreground(rows[shows_any], share[shows_any], int((~shows_any).sum()))


def _mask(store: FeatureStore, row: int, labels: np.ndarray, by_map: bool) -> Bool[np.ndarray, "h w"]:
    if by_map:
        return np.isin(store.segmentation.label_map(row), labels)
    instances = store.instances.of(row)
    return np.asarray(instances.masks()[np.isin(instances.labels, labels)].any(0))


def on_foreground(weights: Float[np.ndarray, "N h w"], share: Float[np.ndarray, "N h w"]) -> Float[np.ndarray, "N"]:
    """The share of each image's weight that falls on its foreground, 0…1; NaN for an image without weight."""
    total = weights.sum((1, 2), dtype=np.float64)
    return np.divide((weights * share).sum((1, 2)), total, out=np.full(len(weights), np.nan), where=total > 0)


def measure(maps: ScoreMaps, foreground: Foreground) -> dict[str, Any]:
    """An entry of `foreground` in metrics.json, percent: mean share over images, one value a seed, and that of the area.

    `chance` is the share of the area: what equal weights would put on the foreground. `gain` is the mean over images of share
    divided by area; 1 is chance.
    """
    area = foreground.share.mean((1, 2))
    shares = [on_foreground(weights, foreground.share) for weights in maps.maps]
    return {
        "source": maps.source,
        "name": maps.name,
        "seeds": list(maps.seeds),
        "share": over_seeds([100 * float(np.nanmean(share)) for share in shares]),
        "chance": 100 * float(area.mean()),
        "gain": over_seeds([float(np.nanmean(share / area)) for share in shares]),
        "n_images": len(foreground.rows),
        "n_without": foreground.n_without,
    }
