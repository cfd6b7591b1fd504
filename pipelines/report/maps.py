"""Maps over the test images: attention of [cls] and weights of heads, only where they certainly belong to those images."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pipelines.report.collect import Inputs
from pipelines.report.tables import title
from probe.result_arrays import array_of

if TYPE_CHECKING:
    from extract.datasets import ImageSet


@dataclass(frozen=True)
class Maps:
    """Maps of one encoder, one row per image.

    Attributes:
        kind: `[cls] attention`, `AbMILP weights`.
        crops: x0, y0, x1, y1 that a map covers, in pixels of its image; beyond the borders where the image was padded.
    """

    encoder: str
    kind: str
    weights: Float[np.ndarray, "N T"]
    crops: Float[np.ndarray, "N 4"]


def maps_of(inputs: Inputs, images: "ImageSet") -> tuple[list[Maps], list[str]]:
    """The maps of each encoder in order, of [cls], then of its heads; and why others are left out.

    Raises:
        BeyondClsError: a file of maps is damaged.
    """
    maps: list[Maps] = []
    left_out: list[str] = []
    for encoder in inputs.encoders:
        attention = inputs.attention.get(encoder)
        if attention is None:
            left_out.append(f"{encoder}: attention was not computed, so it is unknown which images its maps show.")
            continue
        if attention.data != images.digest:
            left_out.append(
                f"{encoder}: its maps are of other images (data set {attention.data}) than those of {images.source} "
                f"({images.digest}); give the images that were extracted with --data."
            )
            continue
        if attention.crops is None:
            left_out.append(
                f"{encoder}: it was not recorded which part of an image its maps show; run `beyondcls attention` again."
            )
            continue
        crops = array_of(attention.crops, "an array [N, 4]; run its stage again")
        if crops.shape != (len(images), 4):
            left_out.append(
                f"{encoder}: its crops are of shape {list(crops.shape)}, expected one row for each of {len(images)} images."
            )
            continue
        for kind, file, reason in _sources(inputs, encoder):
            weights = None if file is None else array_of(file, "an array [N, T]; run its stage again")
            if weights is not None:
                reason = _unfit(weights, len(images))
            if weights is None or reason:
                left_out.append(f"{encoder}, {kind}: {reason}.")
            elif file == attention.cls_map or np.ptp(weights, axis=1).any():  # not that of a plain average
                maps.append(Maps(encoder, kind, weights, crops))
    return maps, left_out


def _sources(inputs: Inputs, encoder: str) -> list[tuple[str, Path | None, str]]:
    """Kind and file of each map, and why it is missing. Heads that pool without weights have no map."""
    attention = inputs.attention[encoder]
    sources: list[tuple[str, Path | None, str]] = [("[cls] attention", attention.cls_map, "it has no [cls] map")]
    weighted = [probe for probe in inputs.probes_of(encoder) if probe.weights is not None or probe.head == "abmilp"]
    if not weighted:
        sources.append(("weights", None, "there is no head with weights"))
    for probe in weighted:
        kind = f"{title(probe.head)} weights"
        if probe.weights is None:
            sources.append((kind, None, "it kept no weights"))
        elif probe.features["test"] != attention.key:
            sources.append((kind, None, "this head was tested on another feature set than the encoder's attention"))
        else:
            sources.append((kind, probe.weights, ""))
    return sources


def _unfit(maps: np.ndarray, n_images: int) -> str:
    """Why these maps cannot be laid over the images; empty if they can."""
    if maps.ndim != 2 or len(maps) != n_images:
        return f"the maps are of shape {list(maps.shape)}, expected one row for each of {n_images} images"
    if math.isqrt(maps.shape[1]) ** 2 != maps.shape[1]:
        return f"its {maps.shape[1]} patches are not a square grid, so their places in the image are unknown"
    return ""
