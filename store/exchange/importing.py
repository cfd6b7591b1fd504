"""An exported feature set back into the store: every value is compared with the digests that were exported with it."""

from pathlib import Path

import numpy as np
import xxhash

from store.errors import StoreError
from store.exchange.description import WRITTEN
from store.exchange.exchange import Exported, Progress
from store.format.reader import FeatureStore
from store.writing.writer import FeatureWriter


def import_from(exported: Exported, out: Path, progress: Progress | None = None) -> FeatureStore:
    """Write what was exported to `out` and open it. The files are the same as before the export, byte for byte.

    What an interrupted import has written is kept and used.

    Args:
        exported: opened by an `Exchange`.
        out: folder of the feature set.
        progress: called with the number of shards done since the last call.

    Raises:
        StoreError: `out` is occupied, or values are missing or not those that were exported.
    """
    store, report = exported.store, progress or (lambda n: None)
    constants = {name: _checked_constant(exported, name) for name, a in store.arrays.items() if not a.layout.has_image_axis}
    layouts = [array.layout for array in store.arrays.values() if array.layout.has_image_axis]
    with FeatureWriter(out, store.spec, layouts, constants) as writer:
        todo = writer.missing_units()
        report((writer.n_units - len(todo)) * len(layouts))
        for unit in todo:
            rows = exported.unit(unit)
            checked = {layout.name: _check(exported, layout.name, unit, rows[layout.name]) for layout in layouts}
            start, stop = layouts[0].rows(unit)
            writer.write_unit(unit, checked, [note for note in store.attributes["invalid"] if start <= note["row"] < stop])
            report(len(layouts))
        writer.finish({name: value for name, value in store.attributes.items() if name not in WRITTEN})
    return FeatureStore.open(out)


def _checked_constant(exported: Exported, name: str) -> np.ndarray:
    """An array without an image axis, if it is the one that was exported."""
    values, layout = exported.constant(name), exported.store.arrays[name].layout
    for shard in range(layout.n_shards):
        _check(exported, name, shard, values[slice(*layout.rows(shard))])
    return values


def _check(exported: Exported, name: str, shard: int, values: np.ndarray) -> np.ndarray:
    """`values`, if they make up the shard that was exported."""
    array = exported.store.arrays[name]
    tail = array.layout.tail(shard, *array.layout.encode(shard, values))
    if xxhash.xxh3_128_hexdigest(tail) != array.shards[shard]["xxh3_128"]:
        first, stop = array.layout.rows(shard)
        raise StoreError(
            f"{exported.where(name, shard)}: rows {first} to {stop - 1} of {name} are not those that were exported: they do "
            "not have the digest in the description; export the feature set again"
        )
    return values
