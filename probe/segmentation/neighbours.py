"""k nearest patches: the labels of patches without any training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Int, Int16
from torch import Tensor

from probe.closed.nearest import METRICS
from probe.closed.protocol import check_grid
from probe.segmentation.nearest import REFERENCES, nearest_rows
from probe.segmentation.patches import Patches
from probe.segmentation.scaling import PatchScaling
from store import BeyondClsError
from store.errors import unknown

QUERIES_AT_ONCE = 1 << 14  # patches whose neighbours are searched in one reading of the training patches
VOTES_AT_ONCE = 1 << 13


@dataclass(frozen=True)
class Neighbours:
    """Majority of the k nearest training patches; of equally frequent classes the lowest.

    Attributes:
        ks, metrics: the grid, as CAPI's; all of it follows from one product.
        standardise: each channel by its mean and standard deviation over the training patches.
    """

    ks: tuple[int, ...] = (1, 3, 10, 30)
    metrics: tuple[str, ...] = METRICS
    standardise: bool = True

    def __post_init__(self) -> None:
        check_grid("ks", self.ks, whole=True)
        for metric in self.metrics:
            if metric not in METRICS:
                raise BeyondClsError(unknown("metric", metric, METRICS))

    @property
    def grid(self) -> list[tuple[str, int]]:
        """(metric, k), the smallest k first."""
        return [(metric, k) for k in sorted(self.ks) for metric in self.metrics]

    def predict(
        self,
        training: Patches,
        test: Patches,
        settings: Sequence[tuple[str, int]],
        progress: Callable[[int], None] = lambda n: None,
    ) -> dict[tuple[str, int], Int16[np.ndarray, "N T"]]:
        """The label of each test patch, void ones included, by each (metric, k).

        Args:
            progress: called with the number of pairs of patches that were compared since the last call.

        Raises:
            BeyondClsError: fewer labelled training patches than k.
        """
        most = max(k for _, k in settings)
        if training.n_labelled < most:
            raise BeyondClsError(
                f"k is {most}, but the training images have {training.n_labelled} labelled patches; give a smaller k"
            )
        scaling = PatchScaling.from_patches(training, True) if self.standardise else None
        # Blocks of patches are read into memory of their own, which the next block overwrites.
        scaled: Callable[[Tensor], Tensor] = (lambda tokens: tokens) if scaling is None else scaling.in_place
        labels = torch.from_numpy(training.labels[training.rows].astype(np.int64)).flatten().to(training.device)
        labels = labels[labels >= 0]
        predicted: dict[tuple[str, int], list[Tensor]] = {setting: [] for setting in settings}
        metrics = list(dict.fromkeys(metric for metric, _ in settings))
        for queries, _ in test.blocks(QUERIES_AT_ONCE, labelled=False):
            references = (scaled(tokens) for tokens, _ in training.blocks(REFERENCES))
            compared = partial(_count, progress, len(queries))
            rows = nearest_rows(scaled(queries), references, most, metrics, compared)
            for metric, k in settings:
                neighbours = labels[rows[metric][:, :k]]
                votes = [_vote(part, training.n_classes) for part in neighbours.split(VOTES_AT_ONCE)]
                predicted[metric, k].append(torch.cat(votes).to("cpu", torch.int16))
        return {setting: torch.cat(parts).view(len(test), -1).numpy() for setting, parts in predicted.items()}


def _count(progress: Callable[[int], None], n_queries: int, n_references: int) -> None:
    progress(n_queries * n_references)


def _vote(labels: Int[Tensor, "n k"], n_classes: int) -> Int[Tensor, "n"]:
    """The most frequent label of each row, of equally frequent ones the lowest."""
    votes = torch.zeros(len(labels), n_classes, dtype=torch.int32, device=labels.device)
    return votes.scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.int32)).argmax(1)
