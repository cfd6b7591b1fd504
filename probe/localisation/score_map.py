"""Scores of patches as an image to threshold."""

import numpy as np
from jaxtyping import Float, UInt8

BRIGHTEST = 255


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


def centre_map(rows: int, columns: int) -> Float[np.ndarray, "rows columns"]:
    """The baseline that does not depend on the image: an isotropic Gaussian at the centre, as in Choe et al. 2020.

    Its level sets are discs; the best threshold chooses the side of a central square. The width of the Gaussian, a quarter of
    the frame here, only decides how finely.
    """
    down, across = ((np.arange(n) - (n - 1) / 2) / (n / 4) for n in (rows, columns))
    return np.exp(-(down[:, None] ** 2 + across[None] ** 2) / 2)
