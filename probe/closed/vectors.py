"""Labelled vectors, one an image: what the protocols without gradient steps learn from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from probe.sources import indistinct
from store import BeyondClsError


@dataclass(frozen=True, eq=False, init=False)
class Vectors:
    """One vector per image, and its labels, given as arrays or tensors.

    Attributes:
        x: float32 or float64; pooled by an aggregator without parameters.
        labels: the class, 0…K - 1, int64 [N]; or 0 and 1 for each class, [N, K], with several labels an image.
        n_classes: K; of the data set, since a subset may lack some.

    Raises:
        BeyondClsError: shapes that do not fit, another dtype, NaN or infinity, labels outside of 0…K - 1, no image.
    """

    x: Float[Tensor, "N W"]
    labels: Shaped[Tensor, "N *K"]
    n_classes: int

    def __init__(self, x: Tensor | np.ndarray, labels: Tensor | np.ndarray, n_classes: int):
        x = torch.as_tensor(x)
        labels = torch.as_tensor(labels, device=x.device)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "labels", labels if labels.ndim > 1 else labels.long())
        object.__setattr__(self, "n_classes", n_classes)
        if x.ndim != 2 or len(x) != len(labels) or not len(x):
            raise BeyondClsError(
                f"vectors {tuple(x.shape)} and labels {tuple(labels.shape)} do not fit, expected [N, W] and [N] or [N, K]; "
                "pool tokens to one vector per image, and take the labels of the same rows"
            )
        if x.dtype not in (torch.float32, torch.float64):
            raise BeyondClsError(f"vectors are {x.dtype}, expected float32 or float64; convert them with .float()")
        if bad := int((~x.isfinite()).any(-1).sum()):
            row = int((~x.isfinite()).any(-1).nonzero()[0])
            raise BeyondClsError(
                f"{bad} of {len(x)} vectors hold NaN or infinity, first row {row}; leave them out, or extract in float32"
            )
        highest_label = 1 if self.multilabel else self.n_classes - 1
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high > highest_label:
            raise BeyondClsError(
                f"labels are {low} to {high}, expected 0 to {highest_label}; take the labelled rows: "
                "np.flatnonzero(store.labelled)"
            )
        if self.multilabel and labels.shape[1] != self.n_classes:
            raise BeyondClsError(f"labels have {labels.shape[1]} columns, expected {self.n_classes}, one a class")

    def __len__(self) -> int:
        """Number of images."""
        return len(self.x)

    @property
    def multilabel(self) -> bool:
        """Whether an image may have no label, or several."""
        return self.labels.ndim > 1

    def rows(self, rows: Any) -> "Vectors":
        """The vectors of some of the images."""
        index = torch.as_tensor(rows, device=self.x.device)
        return Vectors(self.x[index], self.labels[index], self.n_classes)


def check_pair(training: Vectors, test: Vectors) -> None:
    """Refuse two sets that do not belong together.

    Raises:
        BeyondClsError: other widths, classes or kinds of labels, or fewer than two classes to tell apart.
    """
    if training.x.shape[1] != test.x.shape[1]:
        raise BeyondClsError(
            f"training vectors are {training.x.shape[1]} wide, test vectors {test.x.shape[1]}; pool both in the same way"
        )
    if (training.n_classes, training.multilabel) != (test.n_classes, test.multilabel):
        kinds = [
            f"{v.n_classes} classes, {'several labels' if v.multilabel else 'one label'} an image" for v in (training, test)
        ]
        raise BeyondClsError(f"training has {kinds[0]}; test has {kinds[1]}; use splits of one data set")
    if problem := indistinct(training.labels.cpu().numpy()):
        raise BeyondClsError(problem)
