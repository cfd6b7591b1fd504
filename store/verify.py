"""Reading a whole feature set back and comparing every shard with its digest."""

from collections.abc import Iterator

from store.errors import StoreError
from store.reader import FeatureStore


def verify(store: FeatureStore) -> Iterator[tuple[str, str | None]]:
    """For every shard of this copy, its file and None, or what is wrong with it."""
    for array in store.arrays.values():
        for shard in range(array.layout.n_shards):
            try:
                array.check(shard)
                yield array.layout.file(shard), None
            except StoreError as error:
                yield array.layout.file(shard), str(error)
