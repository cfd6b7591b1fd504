"""Compose images whose boxes are known: photographs pasted at random places on larger pictures without an object.

    python -m pipelines.quickstart.compose --data quickstart/data/cifar10 --split test --out quickstart/composed

gives OUT/images/*.png and OUT/images.csv (id, path, label, x0, y0, x1, y1), which is what `beyondcls extract --data` takes. The
same photographs and seed give the same bytes.
"""

import csv
import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from jaxtyping import Float, UInt8
from PIL import Image

from extract.datasets import open_images
from store import BeyondClsError

COLUMNS = ("id", "path", "label", "x0", "y0", "x1", "y1")
OCTAVES = (2, 4, 8)  # cells along each side, each octave half as strong as the one before


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
    photo: Image.Image, canvas: int, sizes: tuple[int, int], generator: np.random.Generator
) -> tuple[UInt8[np.ndarray, "canvas canvas 3"], tuple[int, int, int, int]]:
    """A photograph on a background, at a size within `sizes` (both included) and a place that are drawn at random.

    Returns:
        The picture, and x0, y0, x1, y1 around the photograph; x1 and y1 are one past its last pixel.
    """
    side = int(generator.integers(sizes[0], sizes[1] + 1))
    x, y = (int(at) for at in generator.integers(0, canvas - side + 1, 2))
    picture = Image.fromarray(background(canvas, generator))
    picture.paste(photo.resize((side, side), Image.Resampling.BICUBIC), (x, y))
    return np.asarray(picture), (x, y, x + side, y + side)


def main(
    data: Annotated[str, typer.Option(help="photographs with labels, as `beyondcls extract --data` takes them")],
    out: Annotated[Path, typer.Option(help="folder for images.csv and images/")],
    n_images: Annotated[int, typer.Option(min=1, help="photographs, drawn without replacement")] = 1000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    split: Annotated[str | None, typer.Option(help="of the photographs, as `beyondcls extract --split` takes it")] = None,
    canvas: Annotated[int, typer.Option(min=1, help="side of the pictures, pixels")] = 64,
    smallest: Annotated[int, typer.Option(min=1, help="side of a photograph on it, at least")] = 24,
    largest: Annotated[int, typer.Option(min=1, help="and at most")] = 40,
) -> None:
    """Write OUT/images/*.png and OUT/images.csv."""
    if not smallest <= largest <= canvas:
        raise BeyondClsError(
            f"photographs of {smallest} to {largest} pixels on {canvas}, expected smallest <= largest <= canvas"
        )
    photos = open_images(data, split=split)
    if n_images > len(photos):
        raise BeyondClsError(f"{data} has {len(photos):,} photographs, {n_images:,} were asked for; give a lower --n-images")
    (out / "images").mkdir(parents=True, exist_ok=True)
    rows: list[tuple[object, ...]] = []
    for row in np.random.default_rng(seed).permutation(len(photos))[:n_images].tolist():
        sample = photos.samples[row]
        picture, box = compose(photos.image(row), canvas, (smallest, largest), np.random.default_rng((seed, row)))
        path = f"images/{len(rows):05d}.png"
        (out / path).write_bytes(png(picture))
        label = "" if sample.label is None else photos.classes[sample.label] if photos.classes else sample.label
        rows.append((sample.id, path, label, *box))
    with (out / "images.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    print(f"{out / 'images.csv'}: {len(rows)} images")


if __name__ == "__main__":
    typer.run(main)
