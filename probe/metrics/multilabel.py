"""Precision, recall and F1 of several labels an image, as reported for COCO and NUS-WIDE."""

from functools import partial

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

MEASURES = ("CP", "CR", "CF1", "OP", "OR", "OF1")


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
    per_class = (
        right[..., has_positive] / n_chosen[..., has_positive].clamp(min=1),
        right[..., has_positive] / n_actual[has_positive],
    )
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
