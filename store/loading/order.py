"""The order in which an epoch visits the rows: by blocks of neighbours, mixed inside windows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Order:
    """One epoch's order, fixed by its seed alone.

    Shuffled, rows are cut into blocks of neighbours on disk; blocks come in random order, `shards_at_once` shards at a time,
    and the rows of a window of neighbouring blocks are mixed. So reads stay long, and a batch holds rows from many places.
    Without shuffling, rows come as they are given.

    Attributes:
        rows: rows to visit, without repeats.
        shard_rows: rows of a shard.
        block_rows: rows of a block, at most.
        window_rows: rows that are mixed.
        shards_at_once: shards whose blocks are mixed; all by default.
        rank, world_size: this process visits its share of the shards; shares are disjoint and, padded with repeats of
            their first rows, equally long.
    """

    rows: np.ndarray
    shard_rows: int
    block_rows: int
    window_rows: int
    shuffle: bool = True
    shards_at_once: int | None = None
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
            rows = self._shuffle_blocks(rows, shard_of, turn, generator)
        return rows if share is None or not len(rows) else np.resize(rows, share)

    def _shuffle_blocks(
        self, rows: np.ndarray, shard_of: np.ndarray, turn: np.ndarray, generator: np.random.Generator
    ) -> np.ndarray:
        block_of = rows // self.shard_rows * -(-self.shard_rows // self.block_rows) + rows % self.shard_rows // self.block_rows
        starts = np.flatnonzero(np.diff(block_of, prepend=-1))
        lengths = np.diff(starts, append=len(rows))
        group = turn[shard_of[starts]] // (self.shards_at_once or len(turn))
        blocks = np.lexsort((generator.random(len(starts)), group))
        lengths = lengths[blocks]
        return rows[np.repeat(starts[blocks] - np.cumsum(lengths) + lengths, lengths) + np.arange(len(rows))]

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
        if self.world_size == 1:
            return len(self.rows)
        return len(self.reading(0))


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


def shuffle_quality(visited: Sequence[int] | np.ndarray) -> dict[str, float]:
    """How well rows are mixed, each as a share of what a full shuffle gives on average (n / 3 places): 1 is as good.

    `displacement`: mean distance of a row's place from its place on disk.
    `neighbours`: mean distance between the places of two rows that are neighbours on disk.
    """
    place = np.argsort(np.asarray(visited), kind="stable")
    third = max(len(place) / 3, 1.0)
    distance = np.abs(np.diff(place)).mean() if len(place) > 1 else 0.0
    return {
        "displacement": float(np.abs(place - np.arange(len(place))).mean() / third) if len(place) else 0.0,
        "neighbours": float(distance / third),
    }
