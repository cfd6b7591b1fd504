"""Corrupt test images as CIFAR-10-C does, with its formulas and severities, as test sets for `beyondcls score`.

    python -m quickstart.corrupt quickstart/data/cifar10/test --out quickstart/data

writes OUT/noise-1, … OUT/pixelate-5 with the ids, labels and classes of the images. The same input gives the same bytes.

Source: Hendrycks and Dietterich 2019, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations.
"""

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image
from webdataset import TarWriter

from extract.datasets.webdataset_tars import CLASS_NAMES
from pipelines.quickstart.objects import png

Corrupt = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]  # of uint8, to values that may be beyond 0…255


def noise(image: np.ndarray, deviation: float, generator: np.random.Generator) -> np.ndarray:
    return image + generator.normal(0, 255 * deviation, image.shape)


def contrast(image: np.ndarray, share: float, _: np.random.Generator) -> np.ndarray:
    mean = image.mean((0, 1))
    return mean + share * (image - mean)


def jpeg(image: np.ndarray, quality: float, _: np.random.Generator) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=int(quality))
    return np.asarray(Image.open(buffer))


def pixelate(image: np.ndarray, share: float, _: np.random.Generator) -> np.ndarray:
    height, width, _channels = image.shape
    small = Image.fromarray(image).resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX))


CORRUPTIONS: dict[str, tuple[Corrupt, tuple[float, ...]]] = {  # with what makes severities 1 to 5
    "noise": (noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "jpeg": (jpeg, (80, 65, 58, 50, 40)),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
}


def corrupted(image: np.ndarray, name: str, severity: int, generator: np.random.Generator) -> np.ndarray:
    """An image [H, W, 3] uint8 with a corruption of CORRUPTIONS, severity 1…5; cut to 0…255, decimals dropped."""
    corrupt, amounts = CORRUPTIONS[name]
    return np.clip(corrupt(image, amounts[severity - 1], generator), 0, 255).astype(np.uint8)


def main(
    images: Annotated[Path, typer.Argument(help="folder of tars, as quickstart.cut writes them")],
    out: Annotated[Path, typer.Option(help="folder for those of corrupted images")] = Path("quickstart/data"),
    severity: Annotated[list[int] | None, typer.Option(min=1, max=5, help="may be repeated  [default: 1, 3 and 5]")] = None,
    seed: int = 0,
) -> None:
    """Write OUT/CORRUPTION-SEVERITY/*.tar, each with classes.txt."""
    for name in CORRUPTIONS:
        for number in severity or (1, 3, 5):
            folder, generator = out / f"{name}-{number}", np.random.default_rng(seed)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(images / CLASS_NAMES, folder / CLASS_NAMES)
            for file in sorted(images.glob("*.tar")):
                with tarfile.open(file) as source, TarWriter(str(folder / file.name), mtime=0) as target:
                    for member in source:
                        content = source.extractfile(member).read()  # type: ignore[union-attr]
                        if member.name.endswith(".png"):
                            pixels = np.asarray(Image.open(io.BytesIO(content)))
                            content = png(corrupted(pixels, name, number, generator))
                        key, _, extension = member.name.partition(".")
                        target.write({"__key__": key, extension: content})
            print(folder)


if __name__ == "__main__":
    typer.run(main)
