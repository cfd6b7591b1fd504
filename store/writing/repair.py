"""Finding the parts of a damaged feature set that can be kept: everything whose bytes can still be vouched for."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import xxhash

from store.errors import StoreError
from store.format.array import ArrayReader
from store.format.layout import ArrayLayout, kind_of
from store.format.reader import FeatureStore
from store.format.spec import FeatureSpec
from store.writing.shard import read_shard


def salvage(
    path: Path, spec: FeatureSpec, layouts_of: Callable[[int | None], Sequence[ArrayLayout]]
) -> tuple[FeatureStore, list[ArrayLayout], list[tuple[str, int]]]:
    """What a `FeatureWriter` can carry over from the set at `path`; everything is read.

    A shard is vouched for by its array's zarr.json, and that by the group's. Where the array's is damaged, it is made anew from
    the shards and must then have the digest that the group records.

    Args:
        spec: of the set as it must be after the repair.
        layouts_of: its layouts, given the rows of a shard (None if these are not known).

    Returns:
        The set, as far as it is sound; its layouts; and the (array, shard) that are not sound.

    Raises:
        StoreError: the group's zarr.json is lost or damaged; it is another set; or a copy that lacks kinds.
    """
    store = FeatureStore.describe(path)
    if store.spec.key != spec.key:
        raise StoreError(
            f"{path} has key {store.spec.key}, but these options give {spec.key} "
            f"({store.spec.explained(spec)} differ); repair it with what it was made with"
        )
    layouts, bad = list(layouts_of(_shard_rows(store))), []
    for layout in layouts:
        if not store.place.has_folder(kind_of(layout.name)):
            raise StoreError(f"{path} is a copy without {layout.name}; pull all of it first, or repair it where it was made")
        if (array := _array(store, layout)) is not None:
            store.arrays[layout.name] = array
            for shard in range(layout.n_shards):
                try:
                    array.check(shard)
                except StoreError:
                    bad.append((layout.name, shard))
    return store, layouts, bad


def _array(store: FeatureStore, layout: ArrayLayout) -> ArrayReader | None:
    """An array of the set; None if nothing vouches for it."""
    digest, content = store.attributes["arrays"].get(layout.name), store.place.content(f"{layout.name}/zarr.json") or b""
    if xxhash.xxh3_128_hexdigest(content) != digest:  # made anew from the shards
        read = (read_shard(store.place, layout, shard) for shard in range(layout.n_shards))
        content = layout.to_zarr({"shards": [one[1] for one in read if one is not None]})
        if xxhash.xxh3_128_hexdigest(content) != digest:
            return None
    array = ArrayReader(store.place, layout.name, json.loads(content))
    return array if array.layout == layout else None


def _shard_rows(store: FeatureStore) -> int | None:
    """Rows of a shard, from the first array that is described as it was written."""
    for name in store.attributes["arrays"]:
        with suppress(StoreError):
            array = store.add(name)
            if array.layout.has_image_axis:
                return array.layout.shard_rows
    return None
