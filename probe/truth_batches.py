"""Batches of tokens with the truths of their images, which other processes decode while this one trains."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from store import Loader


class TruthBatches:
    """Batches of a loader, each with `truths`: one an image, as the view shows it that the epoch shows.

    Args:
        loader: of tokens in one of several views at random.
        truths: by (row, view); other processes get a copy.
        views: of the loader.
        workers: processes that decode; 0: this one does. Batches are the same with any number.
        keep_nbytes: memory for truths that are needed again in each epoch: arrays.
    """

    def __init__(self, loader: Loader, truths: Dataset[Any], views: Sequence[int], workers: int = 0, keep_nbytes: int = 0):
        self.loader, self.views = loader, tuple(views)
        self._kept: dict[tuple[int, int], Any] = {}
        self._room = keep_nbytes
        self._wanted: list[list[tuple[int, int]]] = []  # of each batch of the epoch, what is not kept; changed in place
        # Not forked, as torch has threads here that a fork would not have.
        beside = {"num_workers": workers, "multiprocessing_context": "spawn", "persistent_workers": True} if workers else {}
        # DataLoader draws a number, which is not to be missed in training.
        own: dict[str, Any] = {"collate_fn": list, "generator": torch.Generator(), **beside}
        self._decoded = DataLoader(truths, batch_sampler=self._wanted, **own)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.loader)

    @property
    def n_rows(self) -> int:
        """Images of an epoch."""
        return self.loader.n_rows

    def epoch(self, seed: int = 0, start: int = 0) -> Iterator[dict[str, Any]]:
        """Batches from batch `start` on; `seed` fixes order and views."""
        rows, size, drawn = self.loader.order.visited(seed).tolist(), self.loader.batch_size, self.loader.views_of(seed)
        shown = None if drawn is None else drawn.tolist()
        pairs = [(row, self.views[0 if shown is None else shown[row]]) for row in rows]
        batches = [pairs[begin : begin + size] for begin in range(start * size, len(pairs), size)]
        self._wanted[:] = [[pair for pair in batch if pair not in self._kept] for batch in batches]
        for batch, of_batch, decoded in zip(self.loader.epoch(seed, start), batches, self._decoded, strict=True):
            assert batch["row"].tolist() == [row for row, _ in of_batch]
            new = iter(decoded)
            truths = [self._kept[pair] if pair in self._kept else self._keep(pair, next(new)) for pair in of_batch]
            yield {**batch, "truths": truths}

    def _keep(self, pair: tuple[int, int], truth: Any) -> Any:
        """The same truth; kept for the next epoch while there is room."""
        if self._room and truth.nbytes <= self._room:
            self._kept[pair] = truth
            self._room -= truth.nbytes
        return truth
