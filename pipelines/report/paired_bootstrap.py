"""A bootstrap over test images, the same resamples for everything compared: what other images would have changed."""

import numpy as np
from jaxtyping import Float

N_RESAMPLES = 10_000
SEED = 0
CHUNK = 1 << 21  # draws at once: 16 MB of counts


def resampled_means(
    values: Float[np.ndarray, "Q N"], n_resamples: int = N_RESAMPLES, seed: int = SEED
) -> Float[np.ndarray, "R Q"]:
    """Means of Q quantities over images that are drawn again, N of N with replacement, `n_resamples` times.

    Resample r has the same images for every quantity, in every call with this N and seed: differences, ratios and any other
    function of the means are resampled by computing it of each row. They are products of the values with how often an image
    was drawn, [R, N], which is multinomial.

    Args:
        values: of each quantity and image, such as the share of seeds that classify the image correctly, 0 to 1.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, chapters 6 and 13.
    """
    n = values.shape[1]
    generator, rows = np.random.default_rng(seed), max(1, CHUNK // n)
    means = []
    for begin in range(0, n_resamples, rows):
        m = min(rows, n_resamples - begin)
        drawn = generator.integers(0, n, (m, n), dtype=np.int32) + (np.arange(m) * n)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=m * n).reshape(m, n)
        means.append(counts.astype(np.float64) @ values.T / n)
    return np.concatenate(means)


def interval(samples: Float[np.ndarray, "R"], level: float = 0.95) -> tuple[float, float]:
    """The percentile interval: the bounds of the middle `level` of the resamples."""
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
