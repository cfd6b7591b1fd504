"""Images to measure with where a data set is not there yet."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 500, 375  # of most images of ImageNet
OCTAVES = (4, 8, 16, 32, 64, 128, 256)  # pixels of noise along the shorter side; amplitudes fall as in photographs
QUALITY = 90


def write_stand_ins(folder: Path, n: int) -> Path:
    """JPEGs of about 100 kB each, as those of ImageNet, in one class folder; returns the folder of that."""
    (folder / "stand-in").mkdir(parents=True)
    for number in range(n):
        (folder / "stand-in" / f"{number:04d}.jpg").write_bytes(stand_in(number))
    return folder


def stand_in(seed: int) -> bytes:
    """A JPEG of noise with the spectrum of a photograph."""
    generator = np.random.default_rng(seed)
    pixels = np.full((HEIGHT, WIDTH, 3), 128.0)
    for side in OCTAVES:
        noise = generator.normal(0, 1, (side, side * WIDTH // HEIGHT, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(noise[..., channel]).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            pixels[..., channel] += 100 / side**0.35 * np.asarray(layer)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=QUALITY)
    return file.getvalue()
