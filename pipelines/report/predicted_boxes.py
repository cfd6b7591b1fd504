"""Boxes that maps predict beside the true ones, over the images if they are available (Fig. 8)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from pipelines.live.overlay import cut_out
from pipelines.report.chosen import chosen_ids
from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Gallery, Picture, Text
from pipelines.report.pictures import BoxOf, Outline, fitted, opened, uri

# Colours that colour-blind people can distinguish; [cls] is dashed as well.
TRUE = ("#2f8cff", 2, False)  # colour, width, dashed
DRAWN = {
    ("attention", "cls"): ("[cls]", ("#ff4020", 2, True)),
    ("probe", "abmilp"): ("AbMILP", ("#10d080", 2, False)),
}
GROUND = 96  # grey of a frame without its image
OPTION = "--localised"  # of `beyondcls report`
LEGEND = (
    "As Fig. 8 of the paper. Blue: boxes of the data set. Red, dashed: the box that the mean [cls] attention predicts; green: "
    "that of AbMILP's weights (first seed). Each encloses the largest contour at the threshold that is best for all "
    "images at IoU 0.5 (MaxBoxAcc); below it, its IoU with the true box that it meets best. An object is found from IoU 0.5 "
    "on. A picture shows what is compared: the part of the image that the encoder saw."
)


@dataclass(frozen=True)
class Predicted:
    """What one map predicts: a box of each image, in pixels of the frame, and its highest IoU with a true one, 0…1."""

    label: str
    boxes: tuple[BoxOf, ...]
    ious: tuple[float, ...]
    outline: tuple[str, int, bool]  # colour, width, dashed


@dataclass(frozen=True)
class Boxes:
    """One LOCALISATION/ENCODER/boxes.json.

    Attributes:
        ids: of the images; all other fields have an entry for each.
        crops: x0, y0, x1, y1 that the frame shows, in pixels of the original.
        true: boxes in pixels of the frame; empty where the frame shows none.
    """

    encoder: str
    data: str
    size: int
    ids: tuple[str, ...]
    crops: tuple[BoxOf, ...]
    flips: tuple[bool, ...]
    true: tuple[tuple[BoxOf, ...], ...]
    maps: tuple[Predicted, ...]


def read_boxes(file: Path) -> Boxes:
    """Boxes that the stage wrote.

    Raises:
        KeyError: the file is not as the stage writes it.
        ValueError: the file is not as the stage writes it.
        TypeError: the file is not as the stage writes it.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    ids = tuple(map(str, content["ids"]))
    maps = []
    for entry in content["maps"]:
        if (look := DRAWN.get((entry["source"], entry["name"]))) is not None:
            label, outline = look
            maps.append(Predicted(label, _boxes(entry["boxes"]), tuple(map(float, entry["ious"])), outline))
    boxes = Boxes(
        encoder=file.parent.name,
        data=str(content["data"]),
        size=int(content["size"]),
        ids=ids,
        crops=_boxes(content["crops"]),
        flips=tuple(map(bool, content["flips"])),
        true=tuple(map(_boxes, content["boxes"])),
        maps=tuple(maps),
    )
    for what in (boxes.crops, boxes.flips, boxes.true, *(one for m in maps for one in (m.boxes, m.ious))):
        if len(what) != len(ids):
            raise ValueError(f"{len(what)} entries, expected one for each of {len(ids)} images")
    return boxes


def _boxes(content: Sequence[Sequence[float]]) -> tuple[BoxOf, ...]:
    return tuple((float(x0), float(y0), float(x1), float(y1)) for x0, y0, x1, y1 in content)


def examples_of_boxes(inputs: Inputs, measured: Sequence[Boxes]) -> list[Block]:
    """A row for each chosen image, a column for each encoder; a legend, and why images are missing.

    Encoders that were localised on other images than the first are left out.
    """
    drawn = [boxes for boxes in measured if boxes.maps]
    if not drawn:
        return []
    first = drawn[0]
    same = [boxes for boxes in drawn if boxes.data == first.data and boxes.ids == first.ids]
    rows = chosen_ids(first.ids, inputs.examples)
    if not rows:
        return []
    pictures, missing = _pictures(inputs, first, rows)
    notes = [f"Outlines alone are drawn. {missing}"] if missing else []
    notes += [f"{boxes.encoder} was localised on other images, and is not shown." for boxes in drawn if boxes not in same]
    shown = tuple(_row(row, same, pictures.get(row)) for row in rows)
    gallery = Gallery("Predicted boxes beside true ones", (), ("image", *(boxes.encoder for boxes in same)), shown)
    return [Text(LEGEND, kind="note"), *(Text(note, kind="notice") for note in notes), gallery]


def _pictures(inputs: Inputs, boxes: Boxes, rows: Sequence[int]) -> tuple[dict[int, Image.Image], str]:
    """Images by row; or none, and the reason."""
    folders = inputs.folders
    if folders.localised is not None:
        images = opened(folders.localised, OPTION, split=folders.localised_split)
    else:
        described = {"split": folders.split, "form": folders.form, "classes": folders.classes}
        images = opened(folders.images, OPTION, folders.pixels, **described)
    if isinstance(images, str):
        return {}, images
    if images.digest != boxes.data:
        return {}, (
            f"The boxes are of other images (data set {boxes.data}) than those of {images.source} ({images.digest}); name "
            f"those that were localised with {OPTION}."
        )
    from extract.datasets import DataError

    at = {sample.id: i for i, sample in enumerate(images.samples)}
    try:
        return {row: images.image(at[boxes.ids[row]]) for row in rows}, ""
    except DataError as error:
        return {}, f"The images of {images.source} cannot be read: {error}"


def _row(row: int, encoders: Sequence[Boxes], image: Image.Image | None) -> tuple[Picture, ...]:
    """The image with its true boxes as the first encoder saw it, then each encoder with what it predicts."""
    first = encoders[0]
    whole = _ground(first, row, image)
    true = [_outline(first, box, whole, TRUE) for box in first.true[row]]
    alt = f"image {first.ids[row]} with {len(true)} true box(es)"
    pictures = [Picture(uri(whole, true), alt, (first.ids[row],))]
    for boxes in encoders:
        ground = _ground(boxes, row, image)
        outlines = [_outline(boxes, box, ground, TRUE) for box in boxes.true[row]]
        outlines += [_outline(boxes, m.boxes[row], ground, m.outline) for m in boxes.maps]
        lines = tuple(f"{m.label} IoU {m.ious[row]:.2f}" for m in boxes.maps)
        alt = f"image {boxes.ids[row]} as {boxes.encoder} saw it, true and predicted boxes: {', '.join(lines)}"
        pictures.append(Picture(uri(ground, outlines), alt, lines))
    return tuple(pictures)


def _ground(boxes: Boxes, row: int, image: Image.Image | None) -> UInt8[np.ndarray, "H W 3"]:
    """What the frame shows, or grey, in the proportions of that part of the image."""
    size = fitted(boxes.crops[row])
    if image is None:
        return np.full((size[1], size[0], 3), GROUND, np.uint8)
    seen = cut_out(image, boxes.crops[row], size)
    return np.ascontiguousarray(seen[:, ::-1]) if boxes.flips[row] else seen


def _outline(boxes: Boxes, box: BoxOf, picture: UInt8[np.ndarray, "H W 3"], look: tuple[str, int, bool]) -> Outline:
    """A box of the frame in pixels of a picture."""
    height, width, _ = picture.shape
    x0, y0, x1, y1 = (at * side / boxes.size for at, side in zip(box, (width, height) * 2, strict=True))
    return Outline((x0, y0, x1, y1), *look)
