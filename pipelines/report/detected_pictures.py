"""Detected boxes and masks beside the true ones, over the images if they are available."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from pipelines.report.chosen import chosen_ids
from pipelines.report.class_colours import colours_of, rgb
from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Gallery, Picture, Swatch, Text
from pipelines.report.dense_images import pictures_of
from pipelines.report.detected import Detected
from pipelines.report.pictures import LARGE_SIDE, BoxOf, Outline, fitted, uri
from pipelines.report.reading import read
from store.truths.rle import decode

COMMAND = "beyondcls detect"
OPACITY = 0.5  # of masks
GROUND = 96  # grey of an image that is not here
N_NAMED = 8  # objects in a text alternative


@dataclass(frozen=True)
class Thing:
    """An object, or what was detected.

    Attributes:
        box: in pixels of the original.
        counts: COCO's compressed run lengths of its mask; None without one.
        score: 0…1; 1 of true objects.
        crowd: whether it stands for several objects, which no detection has to find.
    """

    label: int
    box: BoxOf
    counts: bytes | None
    score: float
    crowd: bool


@dataclass(frozen=True)
class Example:
    """An image with its objects; `size` is its height and width."""

    id: str
    size: tuple[int, int]
    objects: tuple[Thing, ...]
    detections: tuple[Thing, ...]


@dataclass(frozen=True)
class Examples:
    """One DETECTION/DATASET/ENCODER/examples.json."""

    data: str
    classes: tuple[str, ...]
    images: tuple[Example, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Of the images."""
        return tuple(image.id for image in self.images)

    @property
    def highest(self) -> float:
        """Score of the surest detection; 0 without any."""
        return max((one.score for image in self.images for one in image.detections), default=0.0)


def examples_in(file: Path) -> Examples:
    """The content of an examples.json.

    Raises:
        KeyError: the file is not as the command writes it.
        ValueError: the file is not as the command writes it.
        TypeError: the file is not as the command writes it.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    classes = tuple(map(str, content["classes"]))
    images = []
    for entry in content["images"]:
        height, width = map(int, entry["size"])
        objects, detections = (
            tuple(_thing(one, classes, (height, width)) for one in entry[k]) for k in ("objects", "detections")
        )
        images.append(Example(str(entry["id"]), (height, width), objects, detections))
    return Examples(str(content["data"]), classes, tuple(images))


def _thing(content: Mapping[str, Any], classes: Sequence[str], size: tuple[int, int]) -> Thing:
    label, counts = int(content["label"]), content.get("counts")
    if not 0 <= label < len(classes):
        raise ValueError(f"class {label}, expected one of {len(classes)}")
    x0, y0, x1, y1 = map(float, content["box"])
    encoded = None if counts is None else str(counts).encode("ascii")
    if encoded is not None:
        decode(encoded, size)  # raises where it is not of this image
    return Thing(label, (x0, y0, x1, y1), encoded, float(content.get("score", 1)), bool(content.get("crowd", False)))


def examples_of_objects(inputs: Inputs, dataset: str, results: Sequence[Detected]) -> list[Block]:
    """A row for each chosen image: image, objects, what was detected from each encoder; a legend, and what is missing.

    Raises:
        BeyondClsError: a file is damaged.
    """
    if not inputs.examples.n and not inputs.examples.ids:
        return []
    files = {one.encoder: one.folder / "examples.json" for one in results}
    kept = {name: read(file, COMMAND, examples_in) for name, file in files.items() if file.is_file()}
    notes = []
    if without := [name for name in files if name not in kept]:
        notes.append(
            f"No examples of {', '.join(without)} were kept, as earlier versions did not; run `{COMMAND}` again for them."
        )
    first = next((one for one in kept.values() if one.images), None)
    if first is None:
        return [Text(note, kind="notice") for note in notes]
    same = {
        name: one for name, one in kept.items() if (one.data, one.classes, one.ids) == (first.data, first.classes, first.ids)
    }
    notes += [f"The examples of {name} are of other images or classes, and are not shown." for name in kept if name not in same]
    score = inputs.examples.score
    notes += [
        f"No detection of {name} in these images has a score of {score:g}; the highest is {one.highest:.2f} (--score)."
        for name, one in same.items()
        if one.highest < score
    ]
    rows = chosen_ids(first.ids, inputs.examples)
    images, missing = pictures_of(inputs.folders.dense_images, dataset, first.data, [first.ids[row] for row in rows])
    notes += [f"Boxes and masks alone are drawn. {missing}"] if missing else []
    text = (
        f"Objects of test images, and what is detected with a score of {score:g} or more (first seed; --score sets another). "
        "Objects that stand for several (crowds) are outlined by dashes; detections need not find them."
    )
    gallery = _gallery(dataset, same, rows, images, score)
    return [Text(text, kind="note"), *(Text(note, kind="notice") for note in notes), gallery]


def _gallery(
    dataset: str, kept: Mapping[str, Examples], rows: Sequence[int], images: Mapping[str, Image.Image], score: float
) -> Gallery:
    first = next(iter(kept.values()))
    examples = [first.images[row] for row in rows]
    shown = [{name: [t for t in one.images[row].detections if t.score >= score] for name, one in kept.items()} for row in rows]
    every = [*(example.objects for example in examples), *(things for of_image in shown for things in of_image.values())]
    colours = colours_of(thing.label for things in every for thing in things)
    pictures = [
        _row(example, of_image, first.classes, images.get(example.id), colours)
        for example, of_image in zip(examples, shown, strict=True)
    ]
    if not images:
        pictures = [one[1:] for one in pictures]
    columns = (*(("image",) if images else ()), "objects", *kept)
    legend = tuple(Swatch(first.classes[label], colour) for label, colour in colours.items())
    return Gallery(f"{dataset}: objects and detections", (), columns, tuple(pictures), legend, large=True)


def _row(
    example: Example,
    detected: Mapping[str, Sequence[Thing]],
    classes: Sequence[str],
    image: Image.Image | None,
    colours: Mapping[int, str],
) -> tuple[Picture, ...]:
    height, width = example.size
    size = fitted((0, 0, width, height), LARGE_SIDE)
    ground = np.full((size[1], size[0], 3), GROUND, np.uint8)
    if image is not None:
        ground = np.asarray(image.resize(size, Image.Resampling.LANCZOS))
    n = len(example.objects)
    lines = (example.id,) if image is None else ()
    named = f"{n} object{'s' * (n != 1)}"
    pictures = [
        Picture(uri(ground), f"test image {example.id}", (example.id,)),
        Picture(
            _drawn(ground, example.objects, example.size, colours),
            f"image {example.id} with {named}: {_named(example.objects, classes)}",
            (*lines, named),
        ),
    ]
    for name, things in detected.items():
        alt = f"image {example.id}, detected from {name}: {_named(things, classes, scores=True)}"
        pictures.append(Picture(_drawn(ground, things, example.size, colours), alt, (f"{len(things)} detected",)))
    return tuple(pictures)


def _drawn(
    ground: UInt8[np.ndarray, "H W 3"], things: Sequence[Thing], size: tuple[int, int], colours: Mapping[int, str]
) -> str:
    """Masks tinted and boxes outlined in the colours of their classes; the surest on top."""
    rows, columns = (((np.arange(n) + 0.5) * side / n).astype(int) for n, side in zip(ground.shape[:2], size, strict=True))
    picture = ground.astype(np.float32)
    scale = (ground.shape[1] / size[1], ground.shape[0] / size[0]) * 2
    outlines = []
    for thing in sorted(things, key=lambda thing: thing.score):
        if thing.counts is not None:
            mask = decode(thing.counts, size)[rows[:, None], columns]
            picture[mask] = (1 - OPACITY) * picture[mask] + OPACITY * np.array(rgb(colours[thing.label]))
        x0, y0, x1, y1 = (at * by for at, by in zip(thing.box, scale, strict=True))
        outlines.append(Outline((x0, y0, x1, y1), colours[thing.label], 2, thing.crowd))
    return uri(np.round(picture).astype(np.uint8), outlines)


def _named(things: Sequence[Thing], classes: Sequence[str], scores: bool = False) -> str:
    """The first of them in words."""
    words = [classes[t.label] + (f" {100 * t.score:.0f} %" if scores else "") for t in things[:N_NAMED]]
    more = [f"{len(things) - N_NAMED} more"] if len(things) > N_NAMED else []
    return ", ".join([*words, *more]) or "nothing"
