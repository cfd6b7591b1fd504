"""Compose images whose boxes are known: photographs pasted at random places on larger pictures without an object.

    python -m pipelines.quickstart.compose --data quickstart/data/cifar10 --split test --out quickstart/composed

gives OUT/images/*.png and OUT/images.csv (id, path, label, x0, y0, x1, y1), which is what `beyondcls extract --data` takes. The
same photographs and seed give the same bytes.
"""

import csv
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from extract.datasets import open_images
from pipelines.quickstart.objects import compose, png
from store import BeyondClsError

COLUMNS = ("id", "path", "label", "x0", "y0", "x1", "y1")


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
        picture = compose([photos.image(row)], [0], canvas, (smallest, largest), np.random.default_rng((seed, row)))
        path = f"images/{len(rows):05d}.png"
        (out / path).write_bytes(png(picture.pixels))
        x, y, width, height = next(picture.objects())["bbox"]
        label = "" if sample.label is None else photos.classes[sample.label] if photos.classes else sample.label
        rows.append((sample.id, path, label, x, y, x + width, y + height))
    with (out / "images.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    print(f"{out / 'images.csv'}: {len(rows)} images")


if __name__ == "__main__":
    typer.run(main)
