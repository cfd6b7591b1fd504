"""Shards on their way from one place to another: in pieces that are checked, several files at a time, none of them twice."""

from collections.abc import Iterator

from store.format.array import ArrayReader
from store.places.aligned import aligned_memory
from store.places.place import Place
from store.writing.shard import is_whole

PIECE_NBYTES = 16 << 20  # read at once: a request of an object store costs as much as some MB
AT_ONCE = 8  # files; one connection does not fill a network


def pieces(array: ArrayReader, shard: int) -> Iterator[memoryview | bytes]:
    """The bytes of a shard file in order, each compared with its digest. A piece is valid until the next is asked for.

    Raises:
        StoreError: damaged rows.
    """
    layout = array.layout
    tail = array.tail(shard, array.place.open(layout.file(shard)))
    start, stop = layout.rows(shard)
    n = max(1, PIECE_NBYTES // (layout.checked_rows * layout.row_nbytes)) * layout.checked_rows
    scratch = aligned_memory(array.scratch_nbytes(min(n, stop - start)))
    for row in range(start, stop, n):
        yield array.fetch(row, min(row + n, stop), scratch)
    yield bytes(layout.data_nbytes(shard) - (stop - start) * layout.row_nbytes)
    yield tail


def has_shard(place: Place, array: ArrayReader, shard: int) -> bool:
    """Whether a place has a shard already: a file of the right size, and the digests at its end are those of our rows."""
    return is_whole(place, array.layout, shard, array.shards[shard]["xxh3_128"])
