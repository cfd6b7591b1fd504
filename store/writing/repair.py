"""Finding the parts of a damaged feature set that can be kept: everything whose bytes can still be vouched for."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import xxhash

from store.errors import StoreError
from store.format.array import ArrayReader
from store.format.layout import DIGEST, ArrayLayout, kind_of
from store.format.reader import FeatureStore
from store.format.spec import FeatureSpec
from store.places import LocalFolder
from store.writing.shard import read_shard

DAMAGED_DIGITS = 4  # keys that differ in more are of different sets, not one of them damaged


def salvage(
    path: Path,
    spec: FeatureSpec,
    layouts_of: Callable[[int | None], Sequence[ArrayLayout]],
    constants: Collection[str],
) -> tuple[FeatureStore, list[ArrayLayout], list[tuple[str, int]]]:
    """What a `FeatureWriter` can carry over from the set at `path`; everything is read.

    A shard is vouched for by its array's zarr.json, and that by the group's. Where the array's is damaged, it is made anew from
    the shards and must then have the digest that the group records. Where the group's is damaged, arrays vouch
    for themselves, but units with images that are not valid are given up: the notes on them are lost.

    Args:
        spec: of the set as it must be after the repair.
        layouts_of: its layouts, given the rows of a shard (None if these are not known).
        constants: names of arrays without an image axis, which are written anew.

    Returns:
        The set, as far as it is sound; its layouts; and the (array, shard) that are not sound.

    Raises:
        StoreError: it is another set, as far as can be seen, or a copy that lacks kinds.
    """
    place = LocalFolder(path)
    try:
        store, lost = FeatureStore.describe(path), False
    except StoreError:
        store, lost = FeatureStore(place, spec, {"arrays": {}, "invalid": []}, "first"), True
    if store.spec.key != spec.key:
        raise StoreError(
            f"{path} has key {store.spec.key}, but these options give {spec.key} "
            f"({store.spec.explained(spec)} differ); repair it with what it was made with"
        )
    # An array that older sets lack: they are repaired as they were, or their receipts would be wrong.
    has_digests = place.content(f"{DIGEST}/zarr.json") is not None if lost else DIGEST in store.attributes["arrays"]
    layouts = [layout for layout in layouts_of(_shard_rows(place)) if has_digests or layout.name != DIGEST]
    if lost:
        _check_options(place, spec, layouts, constants)
    bad = []
    for layout in layouts:
        if not place.has_folder(kind_of(layout.name)):
            raise StoreError(f"{path} is a copy without {layout.name}; pull all of it first, or repair it where it was made")
        if (array := _array(store, layout)) is not None:
            store.arrays[layout.name] = array
            for shard in range(layout.n_shards):
                try:
                    array.check(shard)
                except StoreError:
                    bad.append((layout.name, shard))
    if lost:  # units that have, or may have, images that are not valid
        valid = store.arrays.get("images/valid")
        for unit in range(layouts[0].n_shards):
            is_bad = valid is None or ("images/valid", unit) in bad
            if is_bad or valid is None or not valid.stored(np.arange(*valid.layout.rows(unit))).all():
                bad += [(layout.name, unit) for layout in layouts if (layout.name, unit) not in bad]
    return store, layouts, bad


def is_unnumbered(path: Path) -> bool:
    """Whether a set's attention maps are named without their block, as in older sets; by folders if the metadata is lost."""
    try:
        return any("/" not in name for name in FeatureStore.describe(path).spec.maps)
    except StoreError:
        return any(path.glob("attention/*/view*"))


def is_pooled(path: Path) -> bool:
    """Whether a set has the vectors of its encoder's own pooling, which older sets lack; by folders if the metadata is lost."""
    try:
        return FeatureStore.describe(path).spec.is_pooled
    except StoreError:
        return any(path.glob("pooled/view*"))


def _check_options(place: LocalFolder, spec: FeatureSpec, layouts: Sequence[ArrayLayout], constants: Collection[str]) -> None:
    """Refuse a set that is not the one that is damaged."""
    expected = {layout.name: layout for layout in layouts}
    for chunks in sorted(place.folder.glob("*/**/c")):
        name = chunks.parent.relative_to(place.folder).as_posix()
        if name in constants:
            continue
        if name not in expected:
            raise StoreError(f"{chunks.parent} would not be there with these options; repair it with what it was made with")
        try:
            stored = ArrayReader(place, name, json.loads(place.content(f"{name}/zarr.json") or b"")).layout
        except (StoreError, ValueError, RecursionError):
            continue  # damaged too
        ours = expected.get(name, stored)
        if (stored.shape, stored.dtype, stored.codec) != (ours.shape, ours.dtype, ours.codec):
            raise StoreError(
                f"{chunks.parent} has shape {list(stored.shape)} and dtype {stored.codec or stored.dtype}, these options give "
                f"{list(ours.shape)} and {ours.codec or ours.dtype}; "
                "repair it with what it was made with"
            )
    key = re.search(rb'"key": "([0-9a-f]{32})"', place.content("zarr.json") or b"")
    if key and sum(a != b for a, b in zip(key[1].decode(), spec.key, strict=True)) > DAMAGED_DIGITS:
        raise StoreError(
            f"{place.address()} had key {key[1].decode()}, but these options give {spec.key}; "
            "repair it with the encoder, the images and the options it was made with"
        )


def _array(store: FeatureStore, layout: ArrayLayout) -> ArrayReader | None:
    """An array of the set; None if nothing vouches for it."""
    digest = store.attributes["arrays"].get(layout.name)
    content = store.place.content(f"{layout.name}/zarr.json") or b""
    if digest is not None and xxhash.xxh3_128_hexdigest(content) != digest:  # made anew from the shards
        read = (read_shard(store.place, layout, shard) for shard in range(layout.n_shards))
        content = layout.to_zarr({"shards": [one[1] for one in read if one is not None]})
        if xxhash.xxh3_128_hexdigest(content) != digest:
            return None
    try:
        array = ArrayReader(store.place, layout.name, json.loads(content))
    except (StoreError, ValueError, RecursionError):
        return None
    return array if array.layout == layout else None


def _shard_rows(place: LocalFolder) -> int | None:
    """Rows of a shard, according to most arrays."""
    recorded = []
    for file in place.folder.glob("*/**/zarr.json"):
        try:
            layout = ArrayLayout.from_zarr("", json.loads(file.read_bytes()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # a group, or damaged
        if layout.dimensions[:1] == ("image",):
            recorded.append(layout.shard_rows)
    return max(set(recorded), key=recorded.count) if recorded else None
