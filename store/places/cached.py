"""A feature set in an object store, read through a cache on this machine's disk."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash

from store.places.aligned import ALIGNMENT
from store.places.cache import DiskCache
from store.places.place import Place, ShardFile

BLOCK_NBYTES = 8 << 20  # of a shard file, as it is kept; a multiple of ALIGNMENT


class Cached(Place):
    """Every request is for whole blocks, so a shuffled epoch need not keep more rows together than when it reads a disk.

    Args:
        place: where the set is.
        cache: keeps the blocks.
        name: of the set's folder in the cache: hexadecimal digits.
    """

    block_nbytes = None

    def __init__(self, place: Place, cache: DiskCache, name: str):
        self.place, self.cache, self.name = place, cache, name
        self.piece_nbytes, self.requests = place.piece_nbytes, place.requests
        self.in_use = cache.hold(name)

    def __reduce__(self) -> tuple[type["Cached"], tuple[Any, ...]]:
        return Cached, (self.place, self.cache, self.name)

    def address(self, name: str = "") -> str:
        return self.place.address(name)

    def content(self, name: str) -> bytes | None:
        return self.place.content(name)

    def expect(self, names: Iterable[str]) -> None:
        self.place.expect(names)

    def size(self, name: str) -> int | None:
        return self.place.size(name)

    def has_folder(self, name: str) -> bool:
        return self.place.has_folder(name)

    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        return _CachedShard(self, name, self.place.open(name), direct)

    def sizes(self) -> dict[str, int]:
        return self.place.sizes()

    def names(self) -> list[str]:
        return self.place.names()

    def put(self, name: str, parts: Iterable[memoryview | bytes], nbytes: int) -> None:
        """Past the cache, which keeps what is read."""
        self.place.put(name, parts, nbytes)


def cached_place(cache: DiskCache, place: Place, key: str, digest: str) -> Place:
    """A place read through a cache; `key` and `digest` are those of the feature set that is there."""
    return Cached(place, cache, xxhash.xxh3_128_hexdigest(f"{key} {digest}".encode()))


class _CachedShard(ShardFile):
    def __init__(self, place: Cached, name: str, shard: ShardFile, direct: bool | None):
        self._place, self._shard, self._direct = place, shard, direct
        self._nbytes = place.size(name) or 0
        # Hashed: a name read from a file must not lead to another folder.
        self._base = place.cache.folder / place.name / xxhash.xxh3_128_hexdigest(name.encode())

    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        self._place.in_use.touch()
        begin, end = offset % ALIGNMENT, min(offset + nbytes, self._nbytes)  # where the first byte goes in `scratch`
        uncached: tuple[int, int] | None = None  # neighbouring blocks that are read past the cache, in one request
        for block in range(offset // BLOCK_NBYTES, -(-end // BLOCK_NBYTES)):
            first = block * BLOCK_NBYTES
            start, stop = max(offset, first), min(end, first + BLOCK_NBYTES)
            if self._read_cached(
                block, start - first, stop - first, scratch[(start - offset + begin) // ALIGNMENT * ALIGNMENT :]
            ):
                self._read_uncached(uncached, offset - begin, scratch)
                uncached = None
            else:
                uncached = (start if uncached is None else uncached[0], stop)
        self._read_uncached(uncached, offset - begin, scratch)
        return scratch[begin : begin + max(0, end - offset)]

    def _read_cached(self, block: int, start: int, stop: int, into: memoryview) -> bool:
        """Bytes of a block, from the disk, or from the store if the cache can keep the block; false if it cannot."""
        cache, first = self._place.cache, block * BLOCK_NBYTES
        nbytes, path = min(BLOCK_NBYTES, self._nbytes - first), Path(f"{self._base}-{block}")
        if cache.read(path, nbytes, start, stop, into, self._direct):
            return True
        data = cache.fetch(path, nbytes, lambda: self._shard.read(first, nbytes, memoryview(b"")))
        if data is None:
            return False
        into[start % ALIGNMENT : start % ALIGNMENT + stop - start] = data[start:stop]
        return True

    def _read_uncached(self, rest: tuple[int, int] | None, base: int, scratch: memoryview) -> None:
        if rest is not None:
            start, stop = rest
            scratch[start - base : stop - base] = self._shard.read(start, stop - start, memoryview(b""))
