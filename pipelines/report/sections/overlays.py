"""Where they look: attention of [cls] and weights of heads over test images, only of those images (Fig. 2, 8, 9)."""

import difflib
import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from pipelines.live.overlay import blend
from pipelines.report.collect import Examples, Inputs
from pipelines.report.content import Block, Gallery, Picture, Section, Text, section_of
from pipelines.report.galleries.images import open_examples
from pipelines.report.galleries.pictures import BoxOf, Outline, choose_rows, crop_or_grey, draw_outlines, move_box
from pipelines.report.measured import AttentionResult
from pipelines.report.tables import title
from probe.result_files import array_of
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.datasets import ImageSet

CLS = "[cls] attention"
ABOUT = (
    "Test images: those that were asked for, drawn by --draw, or the first of different classes. [cls] attention: of [cls] "
    "to the patches in the probed block, mean over attention heads. Weights: those of a trained head, mean over seeds. As "
    "Fig. 2, 8 and 9."
)
READING = (
    "Each map is scaled to its own range, from dark to bright, so a nearly even one shows as much contrast as a selective "
    "one; the number below it is its peak as a multiple of an even map (1 / T). It covers the part of the image that the "
    "encoder saw, black where that was padded. White frames: the data set's boxes. Heads that weigh all patches alike are "
    "not drawn."
)


class EncoderMaps(NamedTuple):
    """Maps of one encoder, one row per image.

    Attributes:
        kind: CLS, `AbMILP weights`.
        crops: x0, y0, x1, y1 that a map covers, in pixels of its image; beyond the borders where the image was padded.
    """

    encoder: str
    kind: str
    weights: Float[np.ndarray, "N T"]
    crops: Float[np.ndarray, "N 4"]


def _row(images: "ImageSet", row: int, maps: list[EncoderMaps]) -> Iterator[Picture]:
    sample, image = images.samples[row], images.image(row)
    names = [images.classes[label] if images.classes else f"class {label}" for label in sample.labels or ()]
    label = ", ".join(names) or "without label"

    def picture(part: BoxOf, weights: Float[np.ndarray, "h w"] | None, alt: str, *lines: str) -> Picture:
        base = crop_or_grey(image, part)
        height, width, _ = base.shape
        boxes = [move_box(box, part, base) for box in images.boxes(row)]
        boxes = [(x0, y0, x1, y1) for x0, y0, x1, y1 in boxes if x0 < width and y0 < height and x1 > 0 and y1 > 0]
        where = ["from {:.0f}, {:.0f} to {:.0f}, {:.0f}".format(*box) for box in boxes]
        counted = f"; boxes of objects in pixels of {width} x {height}: {', '.join(where)}" if where else ""
        drawn = draw_outlines(base if weights is None else blend(base, weights), map(Outline, boxes))
        return Picture(drawn, alt + counted, lines)

    yield picture((0, 0, *image.size), None, f"test image {sample.id}, class {label}", label, sample.id)
    for one in maps:
        weights = np.asarray(one.weights[row], np.float64)
        side = math.isqrt(len(weights))
        peak = float(weights.max() / weights.mean()) if weights.mean() > 0 else 0.0
        alt = f"{one.kind} of {one.encoder} on image {sample.id} ({label}), highest weight {peak:.1f} times uniform"
        x0, y0, x1, y1 = map(float, one.crops[row])
        yield picture((x0, y0, x1, y1), weights.reshape(side, side), alt, f"peak {peak:.1f}×")


def maps_of(inputs: Inputs, images: "ImageSet") -> tuple[list[EncoderMaps], list[str]]:
    """The maps of each encoder in order, of [cls], then of its heads; and why others are left out."""
    maps: list[EncoderMaps] = []
    left_out: list[str] = []
    for encoder in inputs.encoders:
        crops = _crops(inputs.attention.get(encoder), images)
        if isinstance(crops, str):
            left_out.append(f"{encoder}: {crops}.")
            continue
        for kind, file, missing in _sources(inputs, encoder):
            weights = np.array([]) if file is None else array_of(file, "an array [N, T]; run its stage again")
            if missing := missing or _misfit(weights, len(images)):
                left_out.append(f"{encoder}, {kind}: {missing}.")
            elif kind == CLS or np.ptp(weights, axis=1).any():  # not that of a plain average
                maps.append(EncoderMaps(encoder, kind, weights, crops))
    return maps, left_out


def _crops(attention: AttentionResult | None, images: "ImageSet") -> Float[np.ndarray, "N 4"] | str:
    """Which part of each image its maps show; or why that is unknown."""
    if attention is None:
        return "attention was not computed, so it is unknown which images its maps show"
    if attention.data != images.digest:
        return (
            f"its maps are of other images (data set {attention.data}) than those of {images.source} ({images.digest}); "
            "give the images that were extracted with --data"
        )
    if attention.crops is None:
        return "it was not recorded which part of an image its maps show; run `beyondcls attention` again"
    crops = array_of(attention.crops, "an array [N, 4]; run its stage again")
    if crops.shape != (len(images), 4):
        return f"its crops are of shape {list(crops.shape)}, expected one row for each of {len(images)} images"
    return crops


def _sources(inputs: Inputs, encoder: str) -> Iterator[tuple[str, Path | None, str]]:
    """Kind and file of each map, and why it is missing. Heads that pool without weights have no map."""
    attention = inputs.attention[encoder]
    yield CLS, attention.cls_map, "" if attention.cls_map else "it has no [cls] map"
    weighted = [probe for probe in inputs.probes_of(encoder) if probe.weights is not None or probe.head == "abmilp"]
    if not weighted:
        yield "weights", None, "there is no head with weights"
    for probe in weighted:
        is_other = probe.features["test"] != attention.key
        missing = "this head was tested on another feature set than the encoder's attention" if is_other else ""
        yield f"{title(probe.head)} weights", probe.weights, missing if probe.weights else "it kept no weights"


def _misfit(maps: np.ndarray, n_images: int) -> str:
    """Why these maps cannot be laid over the images; empty if they can."""
    if maps.ndim != 2 or len(maps) != n_images:
        return f"the maps are of shape {list(maps.shape)}, expected one row for each of {n_images} images"
    if math.isqrt(maps.shape[1]) ** 2 != maps.shape[1]:
        return f"its {maps.shape[1]} patches are not a square grid, so their places in the image are unknown"
    return ""


def section(inputs: Inputs) -> Section:
    """A row for each chosen image, a column for each map, and why other maps are left out."""
    drawn, left_out = _gallery(inputs)
    shown: list[Block] = [Text(ABOUT), Text(READING, kind="note"), drawn] if drawn else []
    why = Text("Left out:" if drawn else "Overlays are left out:", tuple(left_out), "notice") if left_out else None
    return section_of("overlays", "Where they look", *shown, why)


def _gallery(inputs: Inputs) -> tuple[Gallery | None, list[str]]:
    """Of each image the whole, then each map over the part that its encoder saw, boxes of objects over both."""
    if inputs.examples.n == 0 and not inputs.examples.ids:
        return None, ["No examples were asked for."]
    folders = inputs.folders
    images = open_examples(
        folders.images, split=folders.split, form=folders.form, classes=folders.classes, pixels=folders.pixels
    )
    if isinstance(images, str):
        return None, [images]
    from extract.datasets import DataError

    ids = [sample.id for sample in images.samples]
    _check_ids(images, ids, inputs.examples)
    maps, left_out = maps_of(inputs, images)
    if not maps:
        return None, left_out
    groups = [(encoder, len(list(of_encoder))) for encoder, of_encoder in groupby(maps, lambda m: m.encoder)]
    columns = ("image", *(m.kind for m in maps))
    chosen_rows = choose_rows(ids, inputs.examples, [sample.label for sample in images.samples])
    try:
        rows = tuple(tuple(_row(images, row, maps)) for row in chosen_rows)
    except DataError as error:
        return None, [f"The images of {folders.images} cannot be read: {error}"]
    return Gallery("overlays", "Test images with attention maps", (("", 1), *groups), columns, rows), left_out


def _check_ids(images: "ImageSet", ids: list[str], examples: Examples) -> None:
    if (wanted := next((one for one in examples.ids if one not in ids), None)) is not None:
        near = difflib.get_close_matches(wanted, ids, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"expected an id such as {ids[0]!r}"
        raise BeyondClsError(f"there is no image {wanted!r} among the {len(ids):,} of {images.source}; {meant} (--image)")
