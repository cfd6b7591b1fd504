"""Reading a whole feature set back and comparing every shard with its digests."""

import os
from collections.abc import Iterator

from store.errors import StoreError
from store.reader import FeatureStore


def verify(path: str | os.PathLike[str]) -> Iterator[tuple[str, int, str | None]]:
    """For every shard of this copy: its array, its number, and None or what is wrong with it.

    An array whose zarr.json is damaged has shard -1, and none of its shards is looked at.

    Raises: StoreError: the group's own zarr.json is missing or damaged.
    """
    store = FeatureStore.describe(path)
    for name in store.attributes["arrays"]:
        if not store.folder.has_folder(name.split("/")[0]):
            continue  # a copy may lack whole kinds
        try:
            array = store.add(name)
        except StoreError as error:
            yield name, -1, str(error)
            continue
        for shard in range(array.layout.n_shards):
            try:
                array.check(shard)
                yield name, shard, None
            except StoreError as error:
                yield name, shard, str(error)
