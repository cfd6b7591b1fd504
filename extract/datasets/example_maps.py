"""Label maps of examples."""

import io
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 36, 40  # of the images of examples


def index_png(values: Sequence[int]) -> Callable[[], bytes]:
    """A label map with these values in vertical stripes."""
    return lambda: _png(np.array(values, np.uint16 if max(values) > 255 else np.uint8)[_stripes(len(values))])


def colour_png(colours: Sequence[tuple[int, int, int]]) -> Callable[[], bytes]:
    """One of these colours."""
    return lambda: _png(np.array(colours, np.uint8)[_stripes(len(colours))])


def _stripes(n: int) -> np.ndarray:
    return np.broadcast_to(np.arange(WIDTH) * n // WIDTH, (HEIGHT, WIDTH))


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()
