"""Scores of patches as an image to threshold."""

import math

import numpy as np
from jaxtyping import Float, UInt8

from store import BeyondClsError

BRIGHTEST = 255


def side_of(n_patches: int) -> int:
    """Patches along each side of a square grid.

    Raises:
        BeyondClsError: the number of patches is not a square.
    """
    side = math.isqrt(n_patches)
    if side * side != n_patches:
        raise BeyondClsError(
            f"{n_patches} patches do not form a square grid, so their positions are unknown; expected a square number: "
            "extract with a square input size, from an encoder that keeps all patches"
        )
    return side


def evaluation_map(scores: Float[np.ndarray, "h w"], size: int) -> UInt8[np.ndarray, "size size"]:
    """A score map in the evaluation frame: resized (bicubic), normalised to 0…1 by its extremes, times 255 and cut to integers.

    As in the authors' code. A map without information, constant or with NaN, is 0 everywhere; any other reaches 0 and 255.
    """
    import cv2

    if not np.isfinite(scores).all() or scores.min() == scores.max():
        return np.zeros((size, size), np.uint8)
    resized = cv2.resize(np.ascontiguousarray(scores, np.float64), (size, size), interpolation=cv2.INTER_CUBIC)
    above = resized - resized.min()
    return (above / above.max() * BRIGHTEST).astype(np.uint8)


def centre_map(size: int) -> Float[np.ndarray, "size size"]:
    """The baseline that does not depend on the image: an isotropic Gaussian at the centre, as in Choe et al. 2020.

    Its level sets are discs; the best threshold chooses the side of a central square. The width of the Gaussian, a quarter of
    the frame here, only decides how finely.
    """
    along = (np.arange(size) - (size - 1) / 2) / (size / 4)
    return np.exp(-(along[:, None] ** 2 + along[None] ** 2) / 2)
