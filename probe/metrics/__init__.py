"""Measures of a trained head. To add one: a function in its own file here, and its line in a registry."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from probe.metrics.accuracy import top_k_accuracy, top_k_hits
from probe.metrics.average_precision import (
    average_precision,
    mean_average_precision,
    n_without_positive,
    overall_average_precision,
)
from probe.metrics.entropy import weight_entropy
from probe.metrics.multilabel import AT_THRESHOLD, at_threshold
from store.plugins import Registry

Metric = Callable[[Tensor, Tensor], Tensor]


def _check(metric: object) -> None:
    if not callable(metric):
        raise TypeError(f"it is {metric!r}, expected a function of logits and labels")


# name -> function(logits [..., B, K], labels [B]) that says of each image whether it is right, bool [..., B]
PER_IMAGE = Registry[Metric]("metrics", _check, ("entropy", *AT_THRESHOLD, "map", "map_overall").__contains__) | {
    "top1": partial(top_k_hits, k=1),
    "top5": partial(top_k_hits, k=5),
}

# name -> function(scores [..., N, K], labels [N, K] of 0 and 1) that gives percent, float64 [...]
MULTILABEL = Registry[Metric]("multilabel_metrics", _check, ("entropy", *PER_IMAGE.own).__contains__) | {
    "map": mean_average_precision,
    "map_overall": overall_average_precision,
    **AT_THRESHOLD,
}

__all__ = [
    "MULTILABEL",
    "PER_IMAGE",
    "at_threshold",
    "average_precision",
    "mean_average_precision",
    "n_without_positive",
    "overall_average_precision",
    "top_k_accuracy",
    "top_k_hits",
    "weight_entropy",
]
