"""One shard file: created with its digests, recorded, and recognised."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xxhash

from store.format.array import read_tail
from store.format.layout import ArrayLayout, count_nonfinite
from store.places.aligned import ALIGNMENT, aligned_memory
from store.places.place import Place, ShardFile, SharedPlace

ASKED_NBYTES = 8 << 20  # of files that are looked for before they are sent: sending them in vain would take longer


def same_values(first: ArrayLayout, second: ArrayLayout) -> bool:
    """Whether a row of one array can be a row of the other, byte for byte."""
    fields = ("dtype", "codec", "dimensions")
    return all(getattr(first, f) == getattr(second, f) for f in fields) and first.shape[1:] == second.shape[1:]


def same_shard(first: ArrayLayout, second: ArrayLayout, shard: int) -> bool:
    """Whether a shard holds rows of the same numbers in both, in files that are alike."""
    alike = first.shard_rows == second.shard_rows and first.chunk_rows == second.chunk_rows
    return alike and same_values(first, second) and shard < second.n_shards and first.rows(shard) == second.rows(shard)


def create_shard(
    place: SharedPlace, layout: ArrayLayout, shard: int, rows: np.ndarray, replaces: bool = False
) -> tuple[bool, dict[str, Any]]:
    """Create a shard file where there is none; digests and record are computed while it is written.

    Args:
        replaces: put it in the place of one that is there.

    Returns:
        Whether it was created, and what zarr.json records of these rows.
    """
    data, padding = layout.encode(shard, rows)
    name, nbytes = layout.file(shard), layout.nbytes(shard)
    with ThreadPoolExecutor(1, "beyondcls-digests") as meanwhile:
        tail = meanwhile.submit(layout.tail, shard, data, padding)
        record = meanwhile.submit(lambda: _record(layout, shard, rows, tail.result()))

        def parts() -> Iterator[memoryview | bytes]:
            yield data
            yield padding
            yield tail.result()

        if replaces:
            place.put(name, parts(), nbytes)
            return True, record.result()
        is_there = nbytes >= ASKED_NBYTES and place.size_now(name) is not None
        return not is_there and place.create(name, parts(), nbytes), record.result()


def record_of(layout: ArrayLayout, shard: int, rows: np.ndarray) -> dict[str, Any]:
    """What zarr.json records of a shard."""
    return _record(layout, shard, rows, layout.tail(shard, *layout.encode(shard, rows)))


def _record(layout: ArrayLayout, shard: int, rows: np.ndarray, tail: bytes) -> dict[str, Any]:
    return {
        "rows": list(layout.rows(shard)),
        "nbytes": layout.nbytes(shard),
        "xxh3_128": xxhash.xxh3_128_hexdigest(tail),
        "nonfinite": count_nonfinite(rows),
    }


def is_whole(place: Place, layout: ArrayLayout, shard: int, digest: str) -> bool:
    """Whether there is a shard file of the right size, and the digests at its end have this digest (XXH3, 128 bits)."""
    name = layout.file(shard)
    file = _opened(place, name, layout.nbytes(shard))
    return file is not None and xxhash.xxh3_128_hexdigest(read_tail(file, layout, shard)) == digest


def _opened(place: Place, name: str, nbytes: int) -> ShardFile | None:
    """A file as it is now; None if there is none of this size."""
    if isinstance(place, SharedPlace):
        return place.open_now(name) if place.size_now(name) == nbytes else None
    return place.open(name) if place.size(name) == nbytes else None


def read_shard(place: Place, layout: ArrayLayout, shard: int) -> tuple[np.ndarray, dict[str, Any]] | None:
    """Stored values of a shard, and its record; None if there is none of its size whose digests are those of its rows."""
    name, nbytes, begin = layout.file(shard), layout.nbytes(shard), layout.data_nbytes(shard)
    if (file := _opened(place, name, nbytes)) is None:
        return None
    content = file.read(0, nbytes, aligned_memory(nbytes + 2 * ALIGNMENT))
    if len(content) != nbytes or bytes(content[begin:]) != layout.tail(shard, content[:begin], memoryview(b"")):
        return None
    start, stop = layout.rows(shard)
    values = np.frombuffer(content[: (stop - start) * layout.row_nbytes], layout.dtype).reshape(-1, *layout.shape[1:])
    return values, _record(layout, shard, values, bytes(content[begin:]))
