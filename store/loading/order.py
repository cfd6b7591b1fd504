"""Which rows are read: the order in which an epoch visits them, by blocks of neighbours, mixed inside windows; the row that an
image has in another feature set, in step with the first; and rows by the ids of a list.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from store.errors import StoreError
from store.format.reader import FeatureStore


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
            owner = _share_shards(counts, turn, self.world_size)
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


def _share_shards(counts: np.ndarray, turn: np.ndarray, world_size: int) -> np.ndarray:
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


def join(first: FeatureStore, second: FeatureStore) -> np.ndarray:
    """For each image of `first`, its row in `second`, [N] int64; -1 where `second` lacks it or could not read it.

    Images are the same where their ids are. Give it to `Loader(joined={name: rows})` with an array of `second`, and leave out
    rows that are -1.

    Raises:
        StoreError: they have no image in common, or the same ids but different labels.
    """
    if first.spec.data == second.spec.data:
        rows = np.arange(len(first))
    else:
        row_of = {id_: row for row, id_ in enumerate(second.ids)}
        rows = np.array([row_of.get(id_, -1) for id_ in first.ids], np.int64)
    shared = np.flatnonzero(rows >= 0)
    if not len(shared):
        raise StoreError(
            f"{first.where} and {second.where} have no image in common: the first has ids like {first.ids[0]!r}, "
            f"the second like {second.ids[0]!r}; extract both from the same images"
        )
    labels, second_labels = first.labels[shared], second.labels[rows[shared]]
    if labels.shape[1:] != second_labels.shape[1:]:
        raise StoreError(f"{first.where} and {second.where} have different classes; are these the same images?")
    differ = shared[(labels != second_labels).reshape(len(shared), -1).any(1)]
    if len(differ):
        image = differ[0]
        raise StoreError(
            f"image {first.ids[image]!r} has label {first.labels[image]} in {first.where} but {second.labels[rows[image]]} in "
            f"{second.where}; are these the same images?"
        )
    rows[shared[~second.valid[rows[shared]]]] = -1
    return rows


def rows_of_ids(store: FeatureStore, ids: Iterable[str]) -> np.ndarray:
    """Rows of the images that `ids` name, in their order, [n] int64. Give them to `Loader(rows=…)`.

    An image may be called by its id, or as files are in published lists: `n01440764_10182.JPEG` is the image with the id
    `n01440764_10182`, or `n01440764/n01440764_10182`.

    Raises:
        StoreError: an id that no image has, that several images could have, or that appears twice.
    """
    return rows_named(store.ids, ids, store.where)


def rows_named(known: Sequence[str], ids: Iterable[str], where: str) -> np.ndarray:
    """Likewise of images with the ids `known`, by row; `where` they are, for messages."""
    row_of: dict[str, int] = {id_: row for row, id_ in enumerate(known)}
    by_name: dict[str, list[int]] = {}
    for id_, row in row_of.items():
        by_name.setdefault(PurePosixPath(id_).name, []).append(row)
    rows: dict[int, str] = {}
    missing = []
    for id_ in ids:
        stem = PurePosixPath(id_).with_suffix("").as_posix()
        matches = next(([row_of[name]] for name in (id_, stem) if name in row_of), None)
        matches = matches or by_name.get(PurePosixPath(id_).name) or by_name.get(PurePosixPath(stem).name) or []
        if len(matches) > 1:
            several = ", ".join(known[row] for row in matches[:3])
            raise StoreError(f"{id_!r} could be several images of {where}: {several}; name them by their whole ids")
        if not matches:
            missing.append(id_)
        elif matches[0] in rows:
            raise StoreError(f"{id_!r} appears twice in the list (first as {rows[matches[0]]!r}); name every image once")
        else:
            rows[matches[0]] = id_
    if missing:
        raise StoreError(
            f"{len(missing)} of {len(missing) + len(rows)} ids are not in {where}, first {missing[0]!r}; "
            f"its ids are like {known[0]!r}: is this the list of another data set or split?"
        )
    return np.fromiter(rows, np.int64, len(rows))


def read_ids(file: Path) -> list[str]:
    """Ids, one a line, as in the published lists of ImageNet 1 % and 10 %; empty lines do not count.

    Raises:
        StoreError: there is no such file, it is not text, or it is empty.
    """
    try:
        ids = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(
            f"the list of ids {str(file)!r} cannot be read ({error}); expected a text file, one id a line"
        ) from error
    if not ids:
        raise StoreError(f"the list of ids {str(file)!r} is empty; expected one id a line")
    return ids
