"""Drawing over a picture: a map of weights, and letters as large as the picture lets them be read."""

import math

import matplotlib
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageFont

OPACITY = (0.35, 0.75)  # of the lowest and of the highest weight
SMALLEST = 10  # pixels of a letter
SHARE = 28  # of letters fit one above the other


def blend(picture: UInt8[np.ndarray, "H W 3"], weights: Float[np.ndarray, "h w"]) -> UInt8[np.ndarray, "H W 3"]:
    """`weights` of a grid of patches, min-max scaled, coloured and laid over the picture; a flat map is all dark."""
    low, span = weights.min(), np.ptp(weights)
    scaled = np.zeros_like(weights) if span == 0 else (weights - low) / span
    grid = Image.fromarray(scaled.astype(np.float32))
    fine = np.asarray(grid.resize(picture.shape[1::-1], Image.Resampling.BILINEAR))  # [H, W], 0…1
    colours = matplotlib.colormaps["inferno"](fine)[..., :3] * 255
    opacity = (OPACITY[0] + (OPACITY[1] - OPACITY[0]) * fine)[..., None]
    return np.round((1 - opacity) * picture + opacity * colours).astype(np.uint8)


def cut_out(image: Image.Image, box: tuple[float, float, float, float], size: tuple[int, int]) -> UInt8[np.ndarray, "H W 3"]:
    """The part of an image that a view shows, resized to (width, height); `box` is in its pixels, black beyond its borders."""
    x0, y0, x1, y1 = box
    if x0 >= 0 and y0 >= 0 and x1 <= image.width and y1 <= image.height:
        return np.asarray(image.resize(size, Image.Resampling.LANCZOS, box=box))
    left, top = math.floor(x0), math.floor(y0)
    padded = image.crop((left, top, math.ceil(x1), math.ceil(y1)))
    part = (x0 - left, y0 - top, x1 - left, y1 - top)
    return np.asarray(padded.resize(size, Image.Resampling.LANCZOS, box=part))


def font_for(size: tuple[int, int]) -> ImageFont.FreeTypeFont:
    """The font that comes with Pillow, for a picture of this height and width."""
    font = ImageFont.load_default(max(SMALLEST, round(min(size) / SHARE)))
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
