"""Measuring heads on the images of a test set."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from probe.aggregators import Features
from probe.head import FinalNorm
from probe.metrics import MULTILABEL, PER_IMAGE, mean_average_precision, weight_entropy
from probe.result_files import BALANCED, NLL
from probe.stack import Stack
from probe.subsets import without_each


class Batches(Protocol):
    """Batches of images: those of a `store.Loader`, or of vectors in memory."""

    @property
    def n_rows(self) -> int: ...

    def epoch(self, seed: int = 0) -> Iterator[dict[str, Any]]: ...


@dataclass
class Measured:
    """What was measured of a stack's members.

    Attributes:
        measures: of each member: those of PER_IMAGE or, where images have several labels, of MULTILABEL, in percent; the mean
            entropy of the weights in nats, where there are any; in the last measurement of images with one label also NLL (mean
            negative log-likelihood of their classes, nats) and balanced accuracy (mean over classes of what is right, percent).
        correct: whether each member's highest logit is the image's class; None where images have several labels.
        weights: of each member, if it is the last measurement.
        without: of each member, mAP without each group of test images in turn (`probe.subsets`), if it is the last
            measurement; empty where images have one label.
    """

    measures: list[dict[str, float]]
    correct: Bool[Tensor, "M N"] | None = None
    weights: Float[Tensor, "M N T"] | None = None
    without: list[list[float]] = field(default_factory=list)


@torch.inference_mode()
def evaluate(stacks: Sequence[Stack], test: Batches, final_norm: FinalNorm | None = None, last: bool = False) -> list[Measured]:
    """Measure all members of all stacks in one pass; no image counts twice.

    Args:
        last: whether these are the results of the heads, of which more is kept than of what is measured on the way.
    """
    tallies = [_Tally(len(stack), last) for stack in stacks]
    for batch in test.epoch():
        normalised = final_norm(batch) if final_norm is not None else batch
        for stack, tally in zip(stacks, tallies, strict=True):
            features: Features = batch if stack.template.final_norm is None else normalised
            tally.add(*stack(features), batch["label"])
    return [tally.measured() for tally in tallies]


class _Tally:
    """Measures of M members, summed up batch by batch."""

    def __init__(self, n_members: int, last: bool):
        self._n_members, self._last, self._n_images = n_members, last, 0
        self._sums: dict[str, Tensor] = {}  # over images, of each member
        self._parts: dict[str, list[Tensor]] = defaultdict(list)  # by image

    def add(self, logits: Float[Tensor, "M B K"], weights: Tensor | None, labels: Tensor) -> None:
        self._n_images += len(labels)
        sums, parts = dict[str, Tensor](), {"labels": labels}
        if labels.ndim == 2:
            parts["scores"] = logits
        else:
            right = {name: measure(logits, labels) for name, measure in PER_IMAGE.items()}
            sums, parts["correct"] = {name: values.sum(-1) for name, values in right.items()}, right["top1"]
            if self._last:
                of_class = labels.expand(self._n_members, -1)[..., None]
                sums[NLL] = -logits.double().log_softmax(-1).gather(-1, of_class).sum((-2, -1))
        if weights is not None:
            sums["entropy"] = weight_entropy(weights).sum(-1)
            if self._last:
                parts["weights"] = weights.expand(self._n_members, *weights.shape[-2:])
        for name, values in sums.items():
            self._sums[name] = self._sums[name] + values if name in self._sums else values
        for name, values in parts.items():
            self._parts[name].append(values.cpu())

    def measured(self) -> Measured:
        n, without = self._n_images, list[list[float]]()
        columns: dict[str, Iterable[float]] = {
            m: (100 * self._sums[m].double() / n).tolist() for m in PER_IMAGE if m in self._sums
        }
        parts = {name: torch.cat(values, 0 if name == "labels" else 1) for name, values in self._parts.items()}
        if NLL in self._sums:
            columns |= {BALANCED: balanced_accuracy(parts["correct"], parts["labels"]), NLL: (self._sums[NLL] / n).tolist()}
        if "scores" in parts:
            scores, labels = parts["scores"], parts["labels"]
            # One member after the other: ranking all of them at once would take several times the memory of the scores.
            columns |= {name: [measure(own, labels).item() for own in scores] for name, measure in MULTILABEL.items()}
            if self._last:
                without = [map_without_each(own, labels) for own in scores]
        if "entropy" in self._sums:
            columns["entropy"] = (self._sums["entropy"] / n).expand(self._n_members).tolist()
        measures = [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]
        return Measured(measures, parts.get("correct"), parts.get("weights"), without)


def balanced_accuracy(right: Bool[Tensor, "M N"], labels: Int[Tensor, "N"]) -> list[float]:
    """Percentage of each class that is right, averaged over the classes that there are; as scikit-learn's balanced accuracy."""
    _, of_image, n = labels.unique(return_inverse=True, return_counts=True)
    by_class = torch.zeros(len(right), len(n), dtype=torch.float64).index_add_(1, of_image, right.double())
    return (100 * by_class / n).mean(1).tolist()


def map_without_each(scores: Float[Tensor, "N K"], labels: Shaped[Tensor, "N K"]) -> list[float]:
    """mAP without each group of images in turn, percent."""
    return without_each(len(labels), lambda rows: mean_average_precision(scores[rows], labels[rows]).item())
