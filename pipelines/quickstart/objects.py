"""Compose pictures of several photographs, whose label maps, boxes and masks are known: a data set for dense tasks.

    python -m pipelines.quickstart.objects --data quickstart/data/cifar10 --out composed/objects

pastes one to three photographs on a background without an object, later ones over earlier ones: training pictures of training
photographs, test pictures of test photographs. OUT is a data set of the form `label-maps`, with objects: images/SPLIT,
labels/SPLIT, label-classes.txt (`background`, then the classes of the photographs) and instances/SPLIT.json. The same
photographs and seed give the same bytes.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from jaxtyping import Float, Int, UInt8
from PIL import Image

from extract.datasets import ImageSet, open_images
from store import BeyondClsError
from store.truths import rle

BACKGROUND = "background"
MOST = 3  # photographs of a picture
OCTAVES = (2, 4, 8)  # cells along each side, each octave half as strong as the one before
VISIBLE = 0.25  # of each photograph at least this share is not covered


@dataclass(frozen=True)
class ComposedPicture:
    """A composed picture.

    Attributes:
        pixels: of the picture.
        numbers: which photograph each pixel comes from, from 1; 0 for the background.
        labels: classes of the photographs, in their order.
    """

    pixels: UInt8[np.ndarray, "side side 3"]
    numbers: Int[np.ndarray, "side side"]
    labels: tuple[int, ...]

    @property
    def label_map(self) -> UInt8[np.ndarray, "side side"]:
        """0 for the background, else the class of the photograph and 1."""
        return np.array([0, *(label + 1 for label in self.labels)], np.uint8)[self.numbers]

    def objects(self) -> Iterator[dict[str, Any]]:
        """Annotations of COCO's format: the visible part of each photograph. Categories are classes, from 1."""
        masks = self.numbers == np.arange(1, len(self.labels) + 1)[:, None, None]
        for label, mask, counts in zip(self.labels, masks, rle.encode(masks), strict=True):
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            x, y = int(columns[0]), int(rows[0])
            box = [x, y, int(columns[-1]) + 1 - x, int(rows[-1]) + 1 - y]
            mask_of_file = {"size": list(mask.shape), "counts": counts.decode("ascii")}
            yield {"category_id": label + 1, "bbox": box, "area": int(mask.sum()), "iscrowd": 0, "segmentation": mask_of_file}


def png(image: UInt8[np.ndarray, "..."]) -> bytes:
    """The content of a file."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def background(side: int, generator: np.random.Generator) -> UInt8[np.ndarray, "side side 3"]:
    """A smooth random texture: noise of several octaves in each colour, stretched over a random range of brightness."""
    texture = sum(_noise(cells, side, generator) / 2**octave for octave, cells in enumerate(OCTAVES))
    texture -= texture.min((0, 1))
    texture /= texture.max((0, 1))
    low, high = np.sort(generator.uniform(0, 255, (2, 3)), axis=0)  # of each colour
    return (low + texture * (high - low)).round().astype(np.uint8)


def _noise(cells: int, side: int, generator: np.random.Generator) -> Float[np.ndarray, "side side 3"]:
    colours = [Image.fromarray(noise) for noise in generator.normal(size=(3, cells, cells)).astype(np.float32)]
    return np.stack([np.asarray(colour.resize((side, side), Image.Resampling.BICUBIC)) for colour in colours], -1)


def compose(
    photos: list[Image.Image], labels: list[int], canvas: int, sizes: tuple[int, int], generator: np.random.Generator
) -> ComposedPicture:
    """Photographs on a background, at sizes within `sizes` (both included) and places that are drawn at random.

    They are drawn again until no photograph is covered for the greater part.
    """
    while True:
        sides = generator.integers(sizes[0], sizes[1] + 1, len(photos))
        corners = [generator.integers(0, canvas - side + 1, 2) for side in sides]
        numbers = np.zeros((canvas, canvas), np.int64)
        for number, (side, (x, y)) in enumerate(zip(sides, corners, strict=True), 1):
            numbers[y : y + side, x : x + side] = number
        if all((numbers == number).sum() >= VISIBLE * side**2 for number, side in enumerate(sides, 1)):
            break
    picture = Image.fromarray(background(canvas, generator))
    for photo, side, (x, y) in zip(photos, sides, corners, strict=True):
        picture.paste(photo.resize((int(side), int(side)), Image.Resampling.BICUBIC), (int(x), int(y)))
    return ComposedPicture(np.asarray(picture), numbers, tuple(labels))


def pictures(photos: ImageSet, n: int, canvas: int, sizes: tuple[int, int], seed: tuple[int, ...]) -> Iterator[ComposedPicture]:
    """Pictures of photographs, each of which is in one picture at most.

    Args:
        photos: with a label each.
        n: pictures.
        canvas: their side, pixels.
        sizes: smallest and largest side of a photograph on them.
        seed: of all that is drawn.

    Raises:
        BeyondClsError: too few photographs, or some without a label.
    """
    if MOST * n > len(photos):
        raise BeyondClsError(
            f"{n:,} pictures of up to {MOST} photographs need {MOST * n:,}, there are {len(photos):,}; ask for fewer"
        )
    order = iter(np.random.default_rng(seed).permutation(len(photos)).tolist())
    for number in range(n):
        generator = np.random.default_rng((*seed, number))
        rows = [next(order) for _ in range(int(generator.integers(1, MOST + 1)))]
        labels = [label for row in rows if (label := photos.samples[row].label) is not None]
        if len(labels) < len(rows):
            raise BeyondClsError(
                f"a photograph among {photos.samples[rows[0]].id!r}, … has no label, which its pixels would have"
            )
        yield compose([photos.image(row) for row in rows], labels, canvas, sizes, generator)


def write(out: Path, split: str, composed: Iterator[ComposedPicture], classes: list[str]) -> int:
    """Write images, label maps and objects of a split; the number of images."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for kind in ("images", "labels"):
        (out / kind / split).mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(composed, 1):
        name = f"{number:05d}.png"
        (out / "images" / split / name).write_bytes(png(picture.pixels))
        (out / "labels" / split / name).write_bytes(png(picture.label_map))
        height, width = picture.numbers.shape
        images.append({"id": number, "file_name": name, "height": height, "width": width})
        for one in picture.objects():
            annotations.append({"id": len(annotations) + 1, "image_id": number, **one})
    categories = [{"id": label + 1, "name": name} for label, name in enumerate(classes)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (out / "instances").mkdir(exist_ok=True)
    (out / "instances" / f"{split}.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    return len(images)


def main(
    data: Annotated[str, typer.Option(help="photographs with one label each, in splits train and test")],
    out: Annotated[Path, typer.Option(help="folder of the data set")],
    train: Annotated[int, typer.Option(min=1, help="pictures to learn from")] = 600,
    test: Annotated[int, typer.Option(min=1, help="pictures to measure on")] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    canvas: Annotated[int, typer.Option(min=1, help="side of the pictures, pixels")] = 64,
    smallest: Annotated[int, typer.Option(min=2, help="side of a photograph on it, at least")] = 20,
    largest: Annotated[int, typer.Option(min=2, help="and at most")] = 40,
) -> None:
    """Write images, label maps and objects of both splits.

    Raises:
        BeyondClsError: sizes that do not fit, too few photographs, or none with names of classes.
    """
    if not smallest <= largest <= canvas // 2 + canvas // 4:
        raise BeyondClsError(
            f"photographs of {smallest} to {largest} pixels on {canvas}, expected smallest <= largest <= {canvas * 3 // 4}: "
            "several have to be seen"
        )
    classes: list[str] = []
    for of_split, (split, n) in enumerate((("train", train), ("test", test))):
        photos = open_images(data, split=split)
        if photos.classes is None:
            raise BeyondClsError(f"{data} has no names of classes; name them, e.g. in classes.txt next to tars")
        classes = list(photos.classes)
        composed = pictures(photos, n, canvas, (smallest, largest), (seed, of_split))
        print(f"{out}: {write(out, split, composed, classes)} images of {split}")
    (out / "label-classes.txt").write_text("\n".join([BACKGROUND, *classes]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
