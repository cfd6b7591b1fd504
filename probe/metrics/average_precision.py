"""Average precision: how well scores rank the images that have a class above those that do not."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def average_precision(scores: Float[Tensor, "... N K"], labels: Shaped[Tensor, "N K"]) -> Float[Tensor, "... K"]:
    """Σₙ (Rₙ - Rₙ₋₁) Pₙ over the thresholds of each class, 0…1, float64; NaN for a class that no image has.

    Precision P and recall R are those of all images that score at or above a threshold. Equal scores are one threshold, and
    nothing is interpolated, as in scikit-learn's `average_precision_score`. NaN scores rank after all others.

    Args:
        scores: of any number of members; only compared, never added.
        labels: 0 or 1.
    """
    ranked, order = scores.masked_fill(scores.isnan(), -torch.inf).sort(dim=-2, descending=True)
    hits = labels.to(torch.float64).expand(scores.shape).gather(-2, order).cumsum(-2)  # true positives up to each rank
    is_threshold = torch.ones_like(ranked, dtype=torch.bool)  # the last of equal scores
    is_threshold[..., :-1, :] = ranked[..., 1:, :] != ranked[..., :-1, :]
    reached = hits * is_threshold
    before = torch.zeros_like(hits)  # true positives at the threshold before
    before[..., 1:, :] = reached.cummax(-2).values[..., :-1, :]
    rank = torch.arange(1, len(labels) + 1, dtype=torch.float64, device=scores.device)[:, None]
    return ((hits - before) * is_threshold * hits / rank).sum(-2) / hits[..., -1, :]


def mean_average_precision(scores: Float[Tensor, "... N K"], labels: Shaped[Tensor, "N K"]) -> Float[Tensor, "..."]:
    """Percent: mean of `average_precision` over the classes that some image has (`n_without_positive` are left out)."""
    return 100 * average_precision(scores, labels).nanmean(-1)


def overall_average_precision(scores: Float[Tensor, "... N K"], labels: Shaped[Tensor, "N K"]) -> Float[Tensor, "..."]:
    """Percent: average precision of all pairs of image and class as one ranking ("micro"), so frequent classes count more."""
    return 100 * average_precision(scores.flatten(-2)[..., None], labels.reshape(-1, 1)).squeeze(-1)


def n_without_positive(labels: Shaped[Tensor, "N K"]) -> int:
    """Classes that no image has; their average precision is undefined."""
    return int((labels > 0).any(0).logical_not().sum())
