"""Measures of a trained head."""

from functools import partial

from probe.metrics.accuracy import top_k_accuracy
from probe.metrics.entropy import weight_entropy

# name -> function(logits [B, K], labels [B]) that gives percent
METRICS = {
    "top1": partial(top_k_accuracy, k=1),
    "top5": partial(top_k_accuracy, k=5),
}

__all__ = ["METRICS", "top_k_accuracy", "weight_entropy"]
