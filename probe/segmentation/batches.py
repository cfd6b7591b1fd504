"""Batches of patches, with the label maps of what they show."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int16
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from probe.beside import ComingBatches, processes
from probe.segmentation.label_maps import LabelMaps
from probe.segmentation.patches import Patches
from store import Loader


class ShownViews:
    """Batches of patches, that remember which view of each image the running epoch shows.

    Args:
        patches: of the training images.
        maps: label maps of the views; one of them at random is shown in each epoch.
        size: rows and columns of the frame in which label maps are given.
        batch_size: images.
        workers: processes that decode label maps; 0: this one does. Batches are the same with any number.
    """

    def __init__(self, patches: Patches, maps: Sequence[LabelMaps], size: tuple[int, int], batch_size: int, workers: int = 0):
        self.maps, self.size = list(maps), size
        self._loader = Loader(
            {"patch": patches.source.arrays("patch", [one.view for one in maps])},
            patches.labels,
            patches.rows,
            batch_size,
            device=patches.device,
            placement=patches.placement,
            buffer_nbytes=patches.buffer_nbytes,
        )
        self._shown: Tensor | None = None
        self._coming, self._decoded = ComingBatches(), None
        if workers:
            self._decoded = DataLoader(
                _Decoded(self.maps, size),
                batch_sampler=self._coming,
                collate_fn=list,
                generator=torch.Generator(),  # the loader draws a number, which is not to be missed in training
                **processes(workers),
            )

    @property
    def n_rows(self) -> int:
        """Images of an epoch."""
        return self._loader.n_rows

    def epoch(self, seed: int = 0, start: int = 0) -> Iterator[dict[str, Tensor]]:
        """Batches in the order of the seed, from batch `start` on."""
        self._shown = self._loader.views_of(seed)
        if self._decoded is None:
            yield from self._loader.epoch(seed, start)
            return
        rows, n = self._loader.order.visited(seed).tolist(), self._loader.batch_size
        batches = [rows[begin : begin + n] for begin in range(start * n, len(rows), n)]
        self._coming.batches = [
            [(row, self._view(row)) for row in batch if not self._maps(row).keeps(row, self.size)] for batch in batches
        ]
        for batch, decoded in zip(self._loader.epoch(seed, start), self._decoded, strict=True):
            for row, label_map in decoded:
                self._maps(row).take(row, label_map)
            yield batch

    def label_maps(self, rows: Sequence[int]) -> list[Int16[np.ndarray, "h w"]]:
        """Label maps of images of the running batch, as its views show them."""
        return [self._maps(row).in_frame(row, self.size) for row in rows]

    def _view(self, row: int) -> int:
        """The place of the shown view in `maps`."""
        return 0 if self._shown is None else int(self._shown[row])

    def _maps(self, row: int) -> LabelMaps:
        return self.maps[self._view(row)]


class _Decoded(Dataset[Any]):
    """Label maps by row and view, which other processes decode."""

    def __init__(self, maps: Sequence[LabelMaps], size: tuple[int, int]):
        self.maps, self.size = list(maps), size

    def __getitem__(self, row_and_view: tuple[int, int]) -> tuple[int, np.ndarray]:
        row, view = row_and_view
        return row, self.maps[view].decoded(row, self.size)
