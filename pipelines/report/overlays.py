"""Where they look: attention of [cls] and weights of AbMILP drawn over test images, only where the map is of that image."""

import base64
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from pipelines.overlay import blend
from pipelines.report.collect import Inputs
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.datasets import ImageSet

SIDE = 128  # pixels of a drawn image
HEAD = "abmilp"


@dataclass(frozen=True)
class Overlay:
    """One map over one image. `peak` is its highest weight as a multiple of the uniform 1 / T."""

    uri: str
    alt: str
    peak: float


@dataclass(frozen=True)
class Example:
    """A test image with one overlay per column."""

    id: str
    label: str
    uri: str
    alt: str
    overlays: tuple[Overlay, ...]


@dataclass(frozen=True)
class Column:
    """Maps [N, T] of one encoder, one row per image."""

    encoder: str
    kind: str
    maps: Float[np.ndarray, "N T"]


@dataclass(frozen=True)
class Overlays:
    """Columns and examples to show, and one line for everything that is left out."""

    columns: tuple[Column, ...]
    examples: tuple[Example, ...]
    left_out: tuple[str, ...]


def draw_overlays(inputs: Inputs, data: str, n_examples: int) -> Overlays:
    """Overlays on the first `n_examples` images of different classes (then the second of each class, and so on).

    Raises: BeyondClsError: a file of maps is damaged.
    """
    if n_examples == 0:
        return Overlays((), (), ("No examples were asked for.",))
    try:
        from extract.datasets import DataError, open_images
    except ModuleNotFoundError as error:
        return Overlays((), (), (f"Images cannot be read: {error}; install beyondcls[extract].",))
    try:
        images = open_images(data)
        if problems := images.all_problems():
            reason = f"{data} has {len(problems)} problem(s), so it is not certain which map is of which image: {problems[0]}"
            return Overlays((), (), (reason,))
        columns, left_out = _columns(inputs, images)
        rows = first_of_classes([sample.label for sample in images.samples], n_examples) if columns else []
        return Overlays(tuple(columns), tuple(_example(images, row, columns) for row in rows), tuple(left_out))
    except DataError as error:
        return Overlays((), (), (f"The images of {data} cannot be read: {error}",))


def first_of_classes(labels: list[int | None], n: int) -> list[int]:
    """Rows of the first image of each class in the order of labels, then of the second of each, up to `n` rows."""
    seen: dict[int | None, int] = {}
    ranked = []
    for row, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        ranked.append((seen[label], -1 if label is None else label, row))
    return [row for _, _, row in sorted(ranked)[:n]]


def _columns(inputs: Inputs, images: "ImageSet") -> tuple[list[Column], list[str]]:
    """Maps that are certainly of these images, and why others are not shown."""
    columns: list[Column] = []
    left_out: list[str] = []
    for encoder in inputs.encoders:
        attention, probe = inputs.attention.get(encoder), inputs.probes.get((encoder, HEAD))
        if attention is None:
            left_out.append(f"{encoder}: attention was not computed, so it is not known which images its maps are of.")
            continue
        if attention.data != images.digest:
            left_out.append(
                f"{encoder}: its maps are of other images (data set {attention.data}) than those of {images.source} "
                f"({images.digest}); give the images that were extracted with --data."
            )
            continue
        sources = [("[cls] attention", attention.cls_map, "it has no [cls] map")]
        if probe is None or probe.weights is None:
            sources.append(("AbMILP weights", None, "there is no AbMILP head with weights"))
        elif probe.features["test"] != attention.key:
            sources.append(("AbMILP weights", None, "its AbMILP head was tested on another feature set than its attention"))
        else:
            sources.append(("AbMILP weights", probe.weights, ""))
        for kind, file, reason in sources:
            maps = None if file is None else _load(file)
            if maps is not None:
                reason = _unfit(maps, len(images))
            if maps is None or reason:
                left_out.append(f"{encoder}, {kind}: {reason}.")
            else:
                columns.append(Column(encoder, kind, maps))
    return columns, left_out


def _load(file: Path) -> Float[np.ndarray, "N T"]:
    try:
        return np.load(file, allow_pickle=False, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise BeyondClsError(f"{file} is damaged ({error}), expected an array [N, T]; run its stage again") from error


def _unfit(maps: np.ndarray, n_images: int) -> str:
    """Why these maps cannot be laid over the images; empty if they can."""
    if maps.ndim != 2 or len(maps) != n_images:
        return f"the maps are of shape {list(maps.shape)}, expected one row for each of {n_images} images"
    if math.isqrt(maps.shape[1]) ** 2 != maps.shape[1]:
        return f"its {maps.shape[1]} patches are no square grid, so their places in the image are not known"
    return ""


def _example(images: "ImageSet", row: int, columns: list[Column]) -> Example:
    sample = images.samples[row]
    classes = images.classes
    label = "without label" if sample.label is None else classes[sample.label] if classes else f"class {sample.label}"
    picture = _square(images.image(row))
    overlays = []
    for column in columns:
        weights = np.asarray(column.maps[row], np.float64)
        side = math.isqrt(len(weights))
        peak = float(weights.max() / weights.mean()) if weights.mean() > 0 else 0.0
        alt = f"{column.kind} of {column.encoder} on image {sample.id} ({label}), highest weight {peak:.1f} times uniform"
        overlays.append(Overlay(_uri(blend(picture, weights.reshape(side, side))), alt, peak))
    alt = f"test image {sample.id}, class {label}"
    return Example(sample.id, label, _uri(picture), alt, tuple(overlays))


def _square(image: Image.Image) -> UInt8[np.ndarray, "S S 3"]:
    """The centre square at the drawn size."""
    side = min(image.size)
    left, top = ((extent - side) // 2 for extent in image.size)
    square = image.crop((left, top, left + side, top + side))
    return np.asarray(square.resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def _uri(picture: UInt8[np.ndarray, "S S 3"]) -> str:
    target = io.BytesIO()
    Image.fromarray(picture).save(target, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(target.getvalue()).decode("ascii")
