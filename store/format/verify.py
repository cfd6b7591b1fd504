"""Reading a whole feature set back and comparing every shard with its digests."""

import os
from collections.abc import Iterator

from store.errors import StoreError
from store.format.names import kind_of
from store.format.reader import FeatureStore
from store.places.parallel import map_parallel


def verify(path: str | os.PathLike[str]) -> Iterator[tuple[str, int, str | None]]:
    """For every shard of this copy: its array, its number, and None or what is wrong with it.

    An array whose zarr.json is damaged has shard -1, and none of its shards is checked.

    Raises:
        StoreError: the group's own zarr.json is missing or damaged.
    """
    store = FeatureStore.describe(path)
    present = [name for name in store.attributes["arrays"] if store.place.has_folder(kind_of(name))]
    store.expect(present)  # a copy may lack kinds
    shards: list[tuple[str, int, str | None]] = []
    for name in present:
        try:
            shards += [(name, shard, None) for shard in range(store.add(name).layout.n_shards)]
        except StoreError as error:
            shards.append((name, -1, str(error)))

    def check(item: tuple[str, int, str | None]) -> tuple[str, int, str | None]:
        name, shard, problem = item
        if problem is None:
            try:
                store.arrays[name].check(shard)
            except StoreError as error:
                problem = str(error)
        return name, shard, problem

    yield from map_parallel(check, shards, store.place.requests)
