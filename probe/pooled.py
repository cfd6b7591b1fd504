"""Vectors of aggregators without parameters: pooled once, then kept in memory while classifiers train on them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from probe.head import Head
from probe.sources import Source
from store.loading.order import Order, random_views
from store.loading.placement import free_memory

MEMORY_SHARE = 0.25  # of what is free on the device
READ_ROWS = 64  # at once: their tokens stay in the cache while they are widened and pooled


@dataclass(frozen=True)
class PooledVectors:
    """Vectors of the images `rows` of a source, in V views; and the weights behind those of the first view, if kept."""

    vectors: Float[Tensor, "V n W"]
    weights: Float[Tensor, "n T"] | None


class PooledImages:
    """Batches of vectors by name, as a `store.Loader` gives them: the same rows in the same order, the same views.

    Args:
        vectors: by name, of all of `source.rows`.
        source: the feature set that they were pooled from.
        rows: images to visit, ascending; all by default.
    """

    def __init__(
        self,
        vectors: Mapping[str, Float[Tensor, "V n _W"]],
        source: Source,
        batch_size: int,
        shuffle: bool,
        rows: np.ndarray | None = None,
    ):
        self.vectors, self.batch_size = dict(vectors), batch_size
        visited, n = source.rows if rows is None else rows, len(source.store)
        first_vectors = next(iter(self.vectors.values()))
        self.device, self.n_views, self.n_rows, self._n = first_vectors.device, len(first_vectors), len(visited), n
        self.labels = torch.from_numpy(source.labels).to(self.device)
        slot = np.full(n, -1)
        slot[source.rows] = np.arange(len(source.rows))
        self._slot = torch.from_numpy(slot).to(self.device)
        self.order = Order(visited, source.store.shard_rows, 1, max(1, len(visited)), shuffle)

    def epoch(self, seed: int = 0) -> Iterator[dict[str, Tensor]]:
        visited = torch.from_numpy(self.order.visited(seed)).to(self.device)
        # [N], which view of each image an epoch shows
        view = torch.from_numpy(random_views(seed, self.n_views, self._n)).to(self.device) if self.n_views > 1 else None
        for rows in visited.split(self.batch_size):
            slots, shown = self._slot[rows], torch.zeros_like(rows) if view is None else view[rows]
            batch = {name: vectors[shown, slots] for name, vectors in self.vectors.items()}
            yield {**batch, "label": self.labels[rows], "row": rows}


def vectors_fit(to_pool: Mapping[str, Head], n_vectors: int, device: torch.device) -> bool:
    """Whether the device has memory for `n_vectors` vectors of each kind."""
    return sum(4 * entry.aggregator.width for entry in to_pool.values()) * n_vectors <= MEMORY_SHARE * free_memory(device)


@torch.no_grad()
def pool(
    to_pool: Mapping[str, Head], source: Source, views: Sequence[int], device: torch.device, keep_weights: bool = False
) -> dict[str, PooledVectors]:
    """Vectors of `source.rows`, float32 on the device; each token is read once a view."""
    kinds = sorted({kind for entry in to_pool.values() for kind in entry.aggregator.reads})
    for entry in to_pool.values():
        entry.aggregator.eval().to(device)
        if entry.final_norm is not None:
            entry.final_norm.to(device)
    size = len(views), len(source.rows)
    vectors = {name: torch.empty(*size, entry.aggregator.width, device=device) for name, entry in to_pool.items()}
    weights: dict[str, list[Tensor]] = {name: [] for name in to_pool}
    for number, view in enumerate(views):
        begin = 0
        loader = source.loader(kinds, (view,), batch_size=READ_ROWS, shuffle=False, device=device, placement="stream")
        for batch in loader.epoch():
            end = begin + len(batch["row"])
            norms = {id(entry.final_norm): entry.final_norm for entry in to_pool.values() if entry.final_norm is not None}
            normalised = {number: norm(batch) for number, norm in norms.items()}
            for name, entry in to_pool.items():
                vector, weight = entry.aggregator(normalised.get(id(entry.final_norm), batch))
                vectors[name][number, begin:end] = vector
                if keep_weights and weight is not None and number == 0:
                    weights[name].append(weight.cpu())
            begin = end
    return {n: PooledVectors(vectors[n], torch.cat(weights[n]) if weights[n] else None) for n in to_pool}
