"""Measures of a trained head. To add one: a function, here or in its own file, and its line in a registry."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from store import BeyondClsError
from store.plugins import Registry

MEASURES = ("CP", "CR", "CF1", "OP", "OR", "OF1")


def top_k_hits(logits: Float[Tensor, "... B K"], labels: Int[Tensor, "B"], k: int = 1) -> Bool[Tensor, "... B"]:
    """Whether the class of each image is among the k highest logits, for any number of members at once.

    Among equal logits the lower class ranks first, so a head with the same logit for every class is not right about all images.
    -inf means that a class is ruled out: it is never among the highest, however few others there are. Otherwise everything is
    right with k ≥ K. An image with a NaN or +inf among its logits counts as wrong for any k.

    Args:
        labels: 0…K - 1.

    Raises:
        BeyondClsError: k below 1.
    """
    if k < 1:
        raise BeyondClsError(f"top-k accuracy has k = {k}, expected 1 or more")
    label_logit = logits.gather(-1, labels.expand(logits.shape[:-1])[..., None])
    lower = torch.arange(logits.shape[-1], device=logits.device) < labels[:, None]  # [B, K]
    ahead = (logits > label_logit) | ((logits == label_logit) & lower)
    return (ahead.sum(-1) < k) & (label_logit > -torch.inf).squeeze(-1) & (logits < torch.inf).all(-1)


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


def weight_entropy(weights: Float[Tensor, "... T"]) -> Float[Tensor, "..."]:
    """Shannon entropy of each image's weights, nats; 0 (one patch) ... ln T (the plain average). Tables 3 and 4."""
    return torch.special.entr(weights.double()).sum(-1)


def at_threshold(
    scores: Float[Tensor, "... N K"], labels: Shaped[Tensor, "N K"], threshold: float = 0.0
) -> dict[str, Float[Tensor, "..."]]:
    """The six of MEASURES in percent, float64, for any number of members. A class is predicted where score ≥ threshold.

    With TP, predicted and actual counted per class:

        CP = mean TP / predicted,      CR = mean TP / actual,      CF1 = 2 CP CR / (CP + CR)
        OP = Σ TP / Σ predicted,       OR = Σ TP / Σ actual,       OF1 = 2 OP OR / (OP + OR)

    Means are over the classes that some image has, the same for CP and CR; CF1 is of the two means, not the mean of F1s.
    Where nothing is predicted precision is 0. Without any positive, recall is NaN.

    Args:
        scores: logits, where 0, the threshold, is the probability ½; NaN predicts nothing.
        labels: 0 or 1.

    Source: Wang et al. 2016 (arXiv 1604.04573), as in ML-GCN's code (Chen et al. 2019, arXiv 1904.03582).
    """
    chosen, actual = scores >= threshold, labels > 0
    right = (chosen & actual).sum(-2, dtype=torch.float64)  # [..., K]
    n_chosen, n_actual = chosen.sum(-2, dtype=torch.float64), actual.sum(-2, dtype=torch.float64)
    has_positive = n_actual > 0
    of_class, chosen_of_class = right[..., has_positive], n_chosen[..., has_positive].clamp(min=1)
    per_class = of_class / chosen_of_class, of_class / n_actual[has_positive]
    overall = right.sum(-1) / n_chosen.sum(-1).clamp(min=1), right.sum(-1) / n_actual.sum()
    values = (*_with_f1(*(part.mean(-1) for part in per_class)), *_with_f1(*overall))
    return {name: 100 * value for name, value in zip(MEASURES, values, strict=True)}


def _with_f1(precision: Tensor, recall: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total = precision + recall
    return precision, recall, torch.where(total == 0, total, 2 * precision * recall / total)


def _measure(name: str, scores: Tensor, labels: Tensor) -> Tensor:
    return at_threshold(scores, labels)[name]


# name -> function(scores [..., N, K], labels [N, K]) that gives one of them
AT_THRESHOLD = {name: partial(_measure, name) for name in MEASURES}


Metric = Callable[[Tensor, Tensor], Tensor]


def _check_metric(metric: object) -> None:
    if not callable(metric):
        raise TypeError(f"it is {metric!r}, expected a function of logits and labels")


# name -> function(logits [..., B, K], labels [B]) that says of each image whether it is right, bool [..., B]
PER_IMAGE = Registry[Metric]("metrics", _check_metric, ("entropy", *AT_THRESHOLD, "map", "map_overall").__contains__) | {
    "top1": partial(top_k_hits, k=1),
    "top5": partial(top_k_hits, k=5),
}

# name -> function(scores [..., N, K], labels [N, K] of 0 and 1) that gives percent, float64 [...]
MULTILABEL = Registry[Metric]("multilabel_metrics", _check_metric, ("entropy", *PER_IMAGE.own).__contains__) | {
    "map": mean_average_precision,
    "map_overall": overall_average_precision,
    **AT_THRESHOLD,
}
