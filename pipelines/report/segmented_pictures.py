"""Predicted label maps beside true ones, and beside the images if they are available."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32
from PIL import Image

from pipelines.live.overlay import cut_out
from pipelines.report.chosen import chosen_ids
from pipelines.report.class_colours import VOID, coloured, colours_of
from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Gallery, Picture, Swatch, Text
from pipelines.report.dense_images import pictures_of
from pipelines.report.pictures import LARGE_SIDE, BoxOf, fitted, uri
from pipelines.report.reading import read
from pipelines.report.segmented import ORIGINAL, PROTOCOLS, Segmented
from store import BeyondClsError

COMMAND = "beyondcls segment"
TRUTH = "truth"
PREFERRED = ("linear", "logistic", "knn")  # where nothing was held out for all
N_NAMED = 5  # classes in a text alternative


@dataclass(frozen=True)
class SavedMap:
    """An image whose maps were saved.

    Attributes:
        crop: x0, y0, x1, y1 that its view shows, in pixels of the original.
        flip: whether the view is mirrored.
    """

    id: str
    file: str
    crop: BoxOf
    flip: bool


@dataclass(frozen=True)
class SavedMaps:
    """One SEGMENTATION/DATASET/ENCODER/maps, as its images.json describes it.

    Attributes:
        resolution: "original", or the shorter side of the view's frame.
        unseen: the value of pixels without a class.
    """

    folder: Path
    data: str
    resolution: str
    unseen: int
    classes: tuple[str, ...]
    images: tuple[SavedMap, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Of the images."""
        return tuple(image.id for image in self.images)

    def prediction(self, protocol: str, image: SavedMap, shape: tuple[int, ...]) -> Int32[np.ndarray, "h w"]:
        """A predicted map of the shape of the true one.

        Raises:
            BeyondClsError: the file is missing, damaged, or of another shape.
        """
        label_map = self.label_map(protocol, image)
        if label_map.shape != shape:
            raise BeyondClsError(
                f"{self.folder / protocol / image.file} is {list(label_map.shape)} pixels, the true label map {list(shape)}; "
                f"run `{COMMAND} --save-maps` again"
            )
        return label_map

    def label_map(self, protocol: str, image: SavedMap) -> Int32[np.ndarray, "h w"]:
        """A predicted map, or the true one; -1 where a pixel has no class.

        Raises:
            BeyondClsError: the file is missing or damaged.
        """
        return read(self.folder / protocol / image.file, COMMAND, self._label_map)

    def _label_map(self, file: Path) -> Int32[np.ndarray, "h w"]:
        with Image.open(file) as picture:
            values = np.asarray(picture).astype(np.int32)
        if values.ndim != 2:
            raise ValueError(f"it has {values.ndim} axes, expected a class for each pixel")
        labels = np.where(values == self.unseen, -1, values)
        if labels.max(initial=-1) >= len(self.classes):
            raise ValueError(f"class {labels.max()}, expected one of {len(self.classes)}")
        return labels


def saved_maps_in(file: Path) -> SavedMaps:
    """The content of an images.json.

    Raises:
        KeyError: the file is not as the command writes it.
        ValueError: the file is not as the command writes it.
        TypeError: the file is not as the command writes it.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    images = []
    for entry in content["images"]:
        x0, y0, x1, y1 = map(float, entry["crop"])
        images.append(SavedMap(str(entry["id"]), Path(str(entry["file"])).name, (x0, y0, x1, y1), bool(entry["flip"])))
    return SavedMaps(
        folder=file.parent,
        data=str(content["data"]),
        resolution=str(content["resolution"]),
        unseen=int(content["unseen"]),
        classes=tuple(map(str, content["classes"])),
        images=tuple(images),
    )


def examples_of_maps(inputs: Inputs, dataset: str, results: Sequence[Segmented]) -> list[Block]:
    """A row for each chosen image: image, true map, that of each encoder by one protocol; a legend, and what is missing.

    Raises:
        BeyondClsError: a file is damaged.
    """
    files = {one.encoder: one.folder / "maps/images.json" for one in results}
    saved = {name: read(file, COMMAND, saved_maps_in) for name, file in files.items() if file.is_file()}
    if not inputs.examples.n and not inputs.examples.ids:
        return []
    notes = []
    if without := [name for name in files if name not in saved]:
        notes.append(f"No label maps of {', '.join(without)} were saved to be shown; run `{COMMAND} --save-maps 6` for them.")
    if not saved:
        return [Text(note, kind="notice") for note in notes]
    first = next(iter(saved.values()))
    same = {name: maps for name, maps in saved.items() if _alike(maps, first)}
    notes += [
        f"The maps of {name} are of other images, classes or pixels, and are not shown." for name in saved if name not in same
    ]
    shown = [one for one in results if one.encoder in same]
    protocol, why = protocol_of(shown, {name: maps.folder for name, maps in same.items()})
    if not protocol:
        return [Text(note, kind="notice") for note in (*notes, why)]
    rows = [first.images[row] for row in chosen_ids(first.ids, inputs.examples)]
    images, missing = pictures_of(inputs.folders.dense_images, dataset, first.data, [image.id for image in rows])
    notes += [f"Label maps alone are drawn. {missing}"] if missing else []
    gallery = _gallery(dataset, same, rows, protocol, images)
    text = (
        f"Label maps of test images beside those that are predicted: {PROTOCOLS.get(protocol, protocol)}{why}, "
        f"{_seed(shown[0], protocol)}{_frame(first)}. Below each, the share of its labelled pixels that are right."
    )
    return [Text(text, kind="note"), *(Text(note, kind="notice") for note in notes), gallery]


def protocol_of(results: Sequence[Segmented], folders: dict[str, Path]) -> tuple[str, str]:
    """The protocol whose maps are shown, the same for all encoders, and why it is that one; "" and the reason if there is none.

    It is the one with the highest mIoU on held-out images, averaged over encoders: test images choose nothing.
    """
    common = [
        name for name in PREFERRED if all(name in one.protocols and (folders[one.encoder] / name).is_dir() for one in results)
    ]
    if not common:
        return "", "No protocol was saved for all encoders, so no label maps are shown."
    held_out = {
        name: sum(values) / len(values)  # type: ignore[arg-type]
        for name in common
        if None not in (values := [one.protocols[name].held_out for one in results])
    }
    if len(common) == 1 or len(held_out) < len(common):
        return common[0], ""
    return max(held_out, key=lambda name: held_out[name]), ", which is best on held-out images"


def _alike(one: SavedMaps, other: SavedMaps) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("data", "resolution", "classes", "images"))


def _seed(one: Segmented, protocol: str) -> str:
    return "first seed, " if len(one.protocols[protocol].seeds) > 1 else ""


def _frame(saved: SavedMaps) -> str:
    return "in pixels of the originals" if saved.resolution == ORIGINAL else f"in a frame of {saved.resolution} pixels"


def _gallery(
    dataset: str,
    saved: dict[str, SavedMaps],
    rows: Sequence[SavedMap],
    protocol: str,
    images: dict[str, Image.Image],
) -> Gallery:
    first = next(iter(saved.values()))
    truths = [first.label_map(TRUTH, image) for image in rows]
    predicted = [
        {name: maps.prediction(protocol, image, truth.shape) for name, maps in saved.items()}
        for image, truth in zip(rows, truths, strict=True)
    ]
    every = [*truths, *(label_map for of_image in predicted for label_map in of_image.values())]
    present = {label for label_map in every for label in np.unique(label_map).tolist()}
    colours = colours_of(present - {-1})
    pictures = [
        _row(first, image, truth, of_image, images.get(image.id), colours)
        for image, truth, of_image in zip(rows, truths, predicted, strict=True)
    ]
    if not images:
        pictures = [row[1:] for row in pictures]
    columns = (*(("image",) if images else ()), "true label map", *saved)
    legend = [Swatch(first.classes[label], colour) for label, colour in colours.items()]
    if -1 in present:
        legend.append(Swatch("void, or not shown by the view", "#{:02x}{:02x}{:02x}".format(*VOID)))
    return Gallery(f"{dataset}: label maps", (), columns, tuple(pictures), tuple(legend), large=True)


def _row(
    saved: SavedMaps,
    image: SavedMap,
    truth: Int32[np.ndarray, "h w"],
    predicted: dict[str, np.ndarray],
    shown: Image.Image | None,
    colours: Mapping[int, str],
) -> tuple[Picture, ...]:
    """The image (a placeholder of the truth's size without one), the true map, and the predicted ones."""
    whole = saved.resolution == ORIGINAL
    part: BoxOf = (0, 0, truth.shape[1], truth.shape[0]) if whole else image.crop
    size = fitted(part, LARGE_SIDE)
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    if shown is not None:
        pixels = cut_out(shown, (0, 0, *shown.size) if whole else image.crop, size)
        pixels = np.ascontiguousarray(pixels[:, ::-1]) if image.flip and not whole else pixels
    pictures = [Picture(uri(pixels), f"test image {image.id}", (image.id,))]
    named = () if shown is not None else (image.id,)
    pictures.append(_picture(truth, size, f"true label map of image {image.id}", saved.classes, colours, named))
    labelled = truth >= 0
    for name, label_map in predicted.items():
        right = 100 * float((label_map == truth)[labelled].mean()) if labelled.any() else 0.0
        alt = f"label map of image {image.id} predicted from {name}, {right:.1f} % of its labelled pixels right"
        pictures.append(_picture(label_map, size, alt, saved.classes, colours, (f"{right:.1f} % right",)))
    return tuple(pictures)


def _picture(
    label_map: Int32[np.ndarray, "h w"],
    size: tuple[int, int],
    alt: str,
    classes: Sequence[str],
    colours: Mapping[int, str],
    lines: tuple[str, ...],
) -> Picture:
    """A map in colours; its text alternative names the largest classes."""
    labels, counts = np.unique(label_map[label_map >= 0], return_counts=True)
    order: list[Any] = np.argsort(-counts, kind="stable")[:N_NAMED].tolist()
    shares = [f"{classes[labels[i]]} {100 * counts[i] / label_map.size:.0f} %" for i in order]
    rows, columns = (((np.arange(n) + 0.5) * side / n).astype(int) for n, side in zip(size[::-1], label_map.shape, strict=True))
    return Picture(
        uri(coloured(label_map[rows[:, None], columns], colours), lossless=True), f"{alt}: {', '.join(shares)}", lines
    )
