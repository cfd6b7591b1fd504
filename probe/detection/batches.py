"""Batches of tokens with the targets of their images."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader

from probe.beside import ComingBatches, processes
from probe.detection.targets import Target, Targets
from store import FeatureStore, Loader


class DetectionBatches:
    """Epochs over the tokens of a feature set, in a new order each; targets are decoded beside, by other processes if any.

    Args:
        store: a feature set with instances.
        rows: of the images to use.
        batch_size: images.
        views: each epoch shows one of them of each image, at random.
        block: whose tokens are read; the deepest stored one by default.
        masks: whether targets have masks.
        workers: processes that decode targets; 0: this one does. Batches are the same with any number.
        device, placement: as for `store.Loader`.
    """

    def __init__(
        self,
        store: FeatureStore,
        rows: np.ndarray,
        batch_size: int,
        *,
        views: Sequence[int] = (0,),
        block: int | None = None,
        masks: bool = True,
        workers: int = 0,
        device: str | torch.device = "cpu",
        placement: Any = "auto",
    ):
        arrays = {"patch": [store.tokens("patch", block, view) for view in views]}
        common: dict[str, Any] = {"device": device, "placement": placement}
        self.loader = Loader(arrays, np.zeros(len(store), np.int64), rows, batch_size, **common)
        self.views, self.device = tuple(views), torch.device(device)
        self._coming = ComingBatches()
        self.targets = DataLoader(
            Targets(store, self.views, masks), batch_sampler=self._coming, collate_fn=list, **processes(workers)
        )

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.loader)

    def epoch(self, seed: int, start: int = 0) -> Iterator[tuple[Float[Tensor, "B T D"], list[Target]]]:
        """Tokens and targets of each batch, from batch `start` on; `seed` fixes order and views."""
        rows, size = self.loader.order.visited(seed), self.loader.batch_size
        shown = self.loader.views_of(seed)
        view = [self.views[0]] * len(self.loader.labels) if shown is None else [self.views[i] for i in shown.tolist()]
        self._coming.batches = [
            [(int(row), view[row]) for row in rows[begin : begin + size]] for begin in range(start * size, len(rows), size)
        ]
        for batch, coming, targets in zip(self.loader.epoch(seed, start), self._coming.batches, self.targets, strict=True):
            assert batch["row"].tolist() == [row for row, _ in coming]
            yield batch["patch"], [{name: values.to(self.device) for name, values in target.items()} for target in targets]
