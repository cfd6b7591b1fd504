"""How differently two aggregators weight the patches of the same images."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from store import BeyondClsError


@dataclass(frozen=True)
class Divergence:
    """KL(p || q) in nats over images, 0 (the same weights) …; infinite where q is 0 at a patch that p weights.

    Attributes:
        mean, std: over the images where it is finite (n in the denominator); None if it is finite for no image.
        n_images: all images, those with an infinite divergence included.
        n_infinite: images that are left out of mean and std.
    """

    mean: float | None
    std: float | None
    n_images: int
    n_infinite: int


def kl_divergence(p: Float[np.ndarray, "N T"], q: Float[np.ndarray, "N T"]) -> Divergence:
    """Σ_t p_t ln(p_t / q_t) of each image, 0 ln 0 being 0, and its mean over images; rows that sum to 1.

    Source: Fig. 7, "mean KLD between aggregation vectors". The paper does not say in which direction it is, in which unit, nor
    what is done about weights of 0, and the official code does not compute it. Here both directions are reported, in nats, and
    images of infinite divergence are counted instead of smoothed: the constant that is added would decide what comes out.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # ln 0
        terms = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
    per_image = np.maximum(terms.sum(1), 0)  # below 0 it can only be by rounding
    finite = per_image[np.isfinite(per_image)]
    mean, std = (float(finite.mean()), float(finite.std())) if len(finite) else (None, None)
    return Divergence(mean, std, len(per_image), len(per_image) - len(finite))


def distributions(weights: np.ndarray, name: str) -> Float[np.ndarray, "N T"]:
    """Weights as float64 whose rows sum to 1: those that come rounded, or without [cls], do not.

    Args:
        name: of the weights, for messages.

    Raises:
        BeyondClsError: they are not [N, T], or an image has weights that are NaN, infinite, negative, or all 0.
    """
    if weights.ndim != 2 or 0 in weights.shape or weights.dtype.kind != "f":
        raise BeyondClsError(
            f"weights of {name} are {weights.dtype} of shape {list(weights.shape)}, expected floats [N, T], a row for each "
            "image; probe the head again"
        )
    rows = weights.astype(np.float64)
    sums = rows.sum(1, keepdims=True)
    bad = ~(np.isfinite(rows) & (rows >= 0))
    wrong = bad.any(1) | ~(sums[:, 0] > 0)
    if wrong.any():
        row = int(wrong.argmax())
        value = f"{rows[row, bad[row]][0]:g} among them" if bad[row].any() else "a sum of 0"
        raise BeyondClsError(
            f"weights of {name} have {value} in row {row} ({int(wrong.sum())} of {len(rows)} rows), expected weights of 0 or "
            "more whose sum is positive; leave this head out, or mend its aggregator"
        )
    return rows / sums
