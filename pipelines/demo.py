"""`beyondcls demo`: the whole way, from pictures to the page, with nothing to download."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from store import BeyondClsError

if TYPE_CHECKING:
    import numpy as np

SIDE, PATTERN = 32, 8  # pixels
RED, DARK = (1.0, 0.1, 0.1), (0.1, 0.1, 0.1)
N_OTHERS = 5
CLASSES = ("checks", "diagonal", "horizontal", "vertical")
N_IMAGES = {"train": 800, "test": 400}

PARAMS = """\
# Written by `beyondcls demo`: pictures that it drew, and an encoder with random weights, which needs no download.
data: .
datasets: [images]
encoders:
  random-vit: {{ model: quickstart-random, random_seed: {seed}, batch_size: 100 }}
heads:
  cls: {{ aggregator: cls, protocol: logistic }}
  average: {{ aggregator: average, protocol: logistic }}
  abmilp: {{ aggregator: abmilp, epochs: 80, base_lr: 0.3, weight_decay: 0 }}
probe:
  seeds: [0, 1, 2]
  batch_size: 100
"""


def main(
    folder: Annotated[Path, typer.Argument(help="new folder for the pictures, feature sets, results and the page")] = Path(
        "beyondcls-demo"
    ),
    signal: Annotated[float, typer.Option(min=0, max=1, help="how clearly the pictures show their class; 0: not at all")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="of the pictures and of the encoder's weights")] = 0,
) -> None:
    """Draw pictures, extract, probe, and write the table and the page: no data, no download, half a minute on two CPU cores.

    Each picture shows a red pattern, which is its class, among dark ones that say nothing: four patches of 64. The lower
    `--signal`, the paler the red one; with 0 it is not there, and every measure has to fall to that of guessing.
    """
    from pipelines.init import write_pipeline
    from pipelines.run_all import run_project

    if folder.exists():
        raise BeyondClsError(f"{folder} exists already; give the name of a new folder, or remove it")
    write_pipeline(folder, PARAMS.format(seed=seed))
    write_pictures(folder / "images", signal, seed)
    run_project(folder)
    typer.echo(
        f"\nopen {folder}/report/index.html; `beyondcls demo OTHER --signal 0` shows what heads do without anything to see"
    )


def write_pictures(folder: Path, signal: float, seed: int) -> None:
    """Write PNG files, SPLIT/CLASS/NUMBER.png: as many of each class."""
    import numpy as np
    from PIL import Image

    for part, (split, n) in enumerate(N_IMAGES.items()):
        rng = np.random.default_rng([seed, part])
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True)
        for number in range(n):
            label = number % len(CLASSES)
            Image.fromarray(picture(rng, label, signal)).save(folder / split / CLASSES[label] / f"{number:04}.png")


def picture(rng: "np.random.Generator", label: int, signal: float) -> "np.ndarray":
    """A red pattern of a class among dark ones, on a noisy ground [SIDE, SIDE, 3], uint8.

    Args:
        signal: opacity of the red one, from 0 to 1.
    """
    import numpy as np

    y, x = np.mgrid[:SIDE, :SIDE]
    wave = np.sin((x * rng.normal() + y * rng.normal()) / 5 + rng.uniform(0, 2 * np.pi))[..., None]
    pixels = rng.uniform(0.2, 0.8, 3) + 0.15 * rng.uniform(-1, 1, 3) * wave + rng.normal(0, 0.08, (SIDE, SIDE, 3))
    patterns = ((x // 2 + y // 2) % 2, (x + y) // 2 % 2, y // 2 % 2, x // 2 % 2)  # by label
    others = rng.integers(len(CLASSES), size=N_OTHERS)
    for place, pattern, colour, opacity in zip(
        rng.permutation((SIDE // PATTERN) ** 2),
        (label, *others),
        (RED, *[DARK] * N_OTHERS),
        (signal, *[1.0] * N_OTHERS),
        strict=False,
    ):
        row, column = divmod(place, SIDE // PATTERN)
        is_drawn = (y // PATTERN == row) & (x // PATTERN == column) & (patterns[pattern] == 0)
        pixels[is_drawn] = (1 - opacity) * pixels[is_drawn] + opacity * np.array(colour)
    return (255 * pixels.clip(0, 1)).round().astype(np.uint8)
