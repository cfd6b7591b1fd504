"""Whether probabilities are what they say (Brier score, calibration errors), and the temperature that mends them."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from store import BeyondClsError

N_BINS = 15
HOTTEST = 1000.0  # temperatures are between its inverse and it


def brier_scores(probabilities: Float[Tensor, "B K"], labels: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """Σₖ (pₖ - [k = label])² of each image, 0…2.

    Source: Brier 1950, Verification of forecasts expressed in terms of probability.
    """
    return (probabilities - torch.nn.functional.one_hot(labels, probabilities.shape[-1])).square().sum(-1)


def bins_of_width(confidence: Float[np.ndarray, "N"], n_bins: int = N_BINS) -> Int[np.ndarray, "N"]:
    """The bin of each image, of bins that are equally wide: bin i is (i / n, (i + 1) / n], and 0 is in the first.

    Source: Guo et al. 2017, On calibration of modern neural networks.
    """
    return np.digitize(confidence, np.linspace(0, 1, n_bins + 1)[1:-1], right=True)


def bins_of_mass(confidence: Float[np.ndarray, "N"], n_bins: int = N_BINS) -> Int[np.ndarray, "N"]:
    """The bin of each image, of bins that hold equally many images, or one more, in the order of their confidence.

    Source: Nixon et al. 2019, Measuring calibration in deep learning.
    """
    rank = np.empty(len(confidence), np.int64)
    rank[np.argsort(confidence, kind="stable")] = np.arange(len(confidence))
    return rank * n_bins // len(confidence)


def reliability(
    confidence: Float[np.ndarray, "N"], correct: Bool[np.ndarray, "N"], bins: Int[np.ndarray, "N"], n_bins: int = N_BINS
) -> dict[str, Any]:
    """Images of each bin (`n`), their mean confidence and their accuracy, 0…1, 0 where a bin is empty.

    Of images with one confidence each counts as right as they are on average, so that their order makes no bin.
    """
    _, tie, n_tied = np.unique(confidence, return_inverse=True, return_counts=True)
    right = (np.bincount(tie, correct) / n_tied)[tie]
    n = np.bincount(bins, minlength=n_bins)
    sums = {"confidence": confidence, "accuracy": right}
    return {"n": n.tolist()} | {name: (np.bincount(bins, v, n_bins) / np.maximum(n, 1)).tolist() for name, v in sums.items()}


def calibration_error(
    confidence: Float[np.ndarray, "N"], correct: Bool[np.ndarray, "N"], bins: Int[np.ndarray, "N"], n_bins: int = N_BINS
) -> float:
    """Expected calibration error: |accuracy - confidence| of bins, weighted by their images, percent."""
    of_bins = reliability(confidence, correct, bins, n_bins)
    n, stated, reached = (np.array(of_bins[name]) for name in ("n", "confidence", "accuracy"))
    return float(100 * (n * np.abs(reached - stated)).sum() / n.sum())


def fit_temperature(logits: Float[Tensor, "N K"], labels: Int[Tensor, "N"]) -> float:
    """The T for which softmax(logits / T) has the least negative log-likelihood, which is convex in 1 / T; float64.

    Source: Guo et al. 2017.

    Raises:
        BeyondClsError: there is none, as every image, or hardly any, is classified correctly.
    """
    logits = logits.double()
    right = logits.gather(-1, labels[:, None]).squeeze(-1)

    def slope_and_curvature(inverse: float) -> tuple[float, float]:
        p = (inverse * logits).softmax(-1)
        mean = (p * logits).sum(-1)
        return float((mean - right).mean()), float(((p * logits.square()).sum(-1) - mean.square()).mean())

    low, high, inverse = 1 / HOTTEST, HOTTEST, 1.0
    if slope_and_curvature(low)[0] >= 0 or slope_and_curvature(high)[0] <= 0:
        accuracy = 100 * float((logits.argmax(-1) == labels).double().mean())
        raise BeyondClsError(
            f"no temperature from {low:g} to {high:g} fits {len(labels):,} held-out images, of which {accuracy:.1f} % are "
            "right; expected some right and some wrong; hold out more images"
        )
    for _ in range(100):  # Newton's steps, within what is known to enclose the minimum
        slope, curvature = slope_and_curvature(inverse)
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        step = inverse - slope / curvature if curvature > 0 else low
        before, inverse = inverse, step if low < step < high else (low * high) ** 0.5
        if abs(inverse - before) <= 1e-10 * before:
            break
    return 1 / inverse
