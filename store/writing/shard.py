"""One shard file: written with its digests, recorded, and recognised as whole."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from store.format.array import read_tail
from store.format.layout import ArrayLayout, count_nonfinite
from store.places.disk import DIRECT_NBYTES, write_synced
from store.places.place import Place


def same_values(first: ArrayLayout, second: ArrayLayout) -> bool:
    """Whether a row of one array can be a row of the other, byte for byte."""
    fields = ("dtype", "codec", "dimensions")
    return all(getattr(first, f) == getattr(second, f) for f in fields) and first.shape[1:] == second.shape[1:]


def same_shard(first: ArrayLayout, second: ArrayLayout, shard: int) -> bool:
    """Whether a shard holds rows of the same numbers in both, in files that are alike."""
    alike = first.shard_rows == second.shard_rows and first.chunk_rows == second.chunk_rows
    return alike and same_values(first, second) and shard < second.n_shards and first.rows(shard) == second.rows(shard)


def write_shard(file: Path, layout: ArrayLayout, shard: int, rows: np.ndarray) -> dict[str, Any]:
    """Write a shard to a file in a folder that exists; its digests and its record are computed meanwhile."""
    data, padding = layout.encode(shard, rows)
    with ThreadPoolExecutor(1, "beyondcls-digests") as meanwhile:
        tail = meanwhile.submit(layout.tail, shard, data, padding)
        record = meanwhile.submit(lambda: _record(layout, shard, rows, tail.result()))

        def parts() -> Iterator[memoryview | bytes]:
            yield data
            yield padding
            yield tail.result()

        write_synced(file, parts(), direct=len(data) >= DIRECT_NBYTES)
        return record.result()


def encoded_shard(layout: ArrayLayout, shard: int, rows: np.ndarray) -> tuple[list[memoryview | bytes], dict[str, Any]]:
    """The bytes of a shard file, one part after the other, and its record. Nothing of `rows` is copied."""
    data, padding = layout.encode(shard, rows)
    tail = layout.tail(shard, data, padding)
    return [data, padding, tail], _record(layout, shard, rows, tail)


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
    if place.size(name) != layout.nbytes(shard):
        return False
    return xxhash.xxh3_128_hexdigest(read_tail(place.open(name), layout, shard)) == digest
