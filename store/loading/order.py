"""The order in which an epoch visits the rows: by blocks of neighbours, mixed inside windows."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Order:
    """One epoch's order, fixed by its seed alone.

    Shuffled, rows are cut into blocks of neighbours on disk; blocks come in random order, and the rows of a window of
    neighbouring blocks are mixed. So reads stay long, and a batch holds rows from many places.
    Without shuffling, rows come as they are given.

    Attributes:
        rows: rows to visit, without repeats.
        shard_rows: rows of a shard.
        block_rows: rows of a block, at most.
        window_rows: rows that are mixed.
        rank, world_size: this process visits its share of the shards; shares are disjoint and, padded with repeats of
            their first rows, equally long.
    """

    rows: np.ndarray
    shard_rows: int
    block_rows: int
    window_rows: int
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1

    def reading(self, seed: int) -> np.ndarray:
        """Rows in the order of their windows; inside a window, not mixed yet."""
        generator = np.random.default_rng(seed)
        rows = np.sort(self.rows) if self.shuffle else self.rows
        shards, shard_of = np.unique(rows // self.shard_rows, return_inverse=True)
        turn = generator.permutation(len(shards)) if self.shuffle else np.arange(len(shards))  # turn[i]: when shard i comes
        share = None
        if self.world_size > 1:
            counts = np.bincount(shard_of, minlength=len(shards))
            owner = _share(counts, turn, self.world_size)
            rows, shard_of = rows[owner[shard_of] == self.rank], shard_of[owner[shard_of] == self.rank]
            share = max(int(counts[owner == rank].sum()) for rank in range(self.world_size))
        if self.shuffle and len(rows):
            per_shard = -(-self.shard_rows // self.block_rows)
            block_of = rows // self.shard_rows * per_shard + rows % self.shard_rows // self.block_rows
            starts = np.flatnonzero(np.diff(block_of, prepend=-1))
            blocks = np.argsort(generator.random(len(starts)), kind="stable")
            lengths = np.diff(starts, append=len(rows))[blocks]
            rows = rows[np.repeat(starts[blocks] - np.cumsum(lengths) + lengths, lengths) + np.arange(len(rows))]
        return rows if share is None or not len(rows) else np.resize(rows, share)

    def window(self, seed: int, number: int, rows: np.ndarray) -> np.ndarray:
        """The rows of a window, mixed."""
        return np.random.default_rng([seed, number]).permutation(rows) if self.shuffle else rows

    def visited(self, seed: int) -> np.ndarray:
        """Rows in the order in which they are handed out."""
        rows = self.reading(seed)
        windows = [rows[start : start + self.window_rows] for start in range(0, len(rows), self.window_rows)]
        return np.concatenate([self.window(seed, i, part) for i, part in enumerate(windows)]) if windows else rows

    @property
    def n_rows(self) -> int:
        """Rows that this process visits in an epoch, repeats included."""
        return len(self.rows) if self.world_size == 1 else len(self.reading(0))


def _share(counts: np.ndarray, turn: np.ndarray, world_size: int) -> np.ndarray:
    """owner[i]: which rank reads shard i. The largest first, each to the rank with the fewest rows so far; ties go by turn.

    This makes the longest share equally long in every epoch.
    """
    owner, load = np.empty(len(counts), np.int64), np.zeros(world_size, np.int64)
    for shard in np.lexsort((turn, -counts)):
        owner[shard] = load.argmin()
        load[owner[shard]] += counts[shard]
    return owner


def random_views(seed: int, n_views: int, n: int) -> np.ndarray:
    """[n] int64: which view of each image an epoch shows, all equally likely; fixed by the epoch's seed."""
    return np.random.default_rng([seed, n_views]).integers(n_views, size=n)
