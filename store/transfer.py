"""Shards on their way from one place to another: in pieces that are checked, several files at a time, none of them twice."""

from collections.abc import Iterator

import xxhash

from store.aligned import ALIGNMENT, aligned_memory
from store.array import ArrayReader
from store.errors import StoreError
from store.folder import Folder

PIECE_NBYTES = 16 << 20  # read at once: a request of an object store costs as much as some MB
AT_ONCE = 8  # files; one connection does not fill a network


def pieces(array: ArrayReader, shard: int) -> Iterator[memoryview | bytes]:
    """The bytes of a shard file one behind the other, each compared with its digest. A piece holds until the next is asked for.

    Raises: StoreError: damaged rows.
    """
    layout, tail = array.layout, _tail(array.folder, array, shard)
    if xxhash.xxh3_128_hexdigest(tail) != array.shards[shard]["xxh3_128"]:
        raise StoreError(
            f"{array.folder.path(layout.file(shard))} is damaged (its tail): its bytes do not have the digest that was written "
            "down; pull or extract it again, or see `beyondcls store repair`"
        )
    start, stop = layout.rows(shard)
    n = max(1, PIECE_NBYTES // (layout.checked_rows * layout.row_nbytes)) * layout.checked_rows
    scratch = aligned_memory(array.scratch_nbytes(min(n, stop - start)))
    for first in range(start, stop, n):
        yield array.fetch(first, min(first + n, stop), scratch)
    yield bytes(layout.data_nbytes(shard) - (stop - start) * layout.row_nbytes)
    yield tail


def _tail(folder: Folder, array: ArrayReader, shard: int) -> bytes:
    """The digests of a shard's rows, and its index, as they are in a folder."""
    begin, nbytes = array.layout.data_nbytes(shard), array.layout.nbytes(shard)
    file = folder.open(array.layout.file(shard))
    return bytes(file.read(begin, nbytes - begin, aligned_memory(nbytes - begin + 2 * ALIGNMENT)))


def is_there(folder: Folder, array: ArrayReader, shard: int) -> bool:
    """Whether a folder has a shard already: files appear whole, and the digests at its end are those of our rows."""
    if folder.size(array.layout.file(shard)) != array.layout.nbytes(shard):
        return False
    return xxhash.xxh3_128_hexdigest(_tail(folder, array, shard)) == array.shards[shard]["xxh3_128"]
