"""Every zarr.json of a finished feature set: the same bytes, wherever and however its shards were written."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

from store.format.flat import flat_layout_of
from store.format.layout import ATTRIBUTE, GROUP, ArrayLayout, groups_of
from store.format.reader import with_digest
from store.format.spec import FeatureSpec
from store.writing.shard import record_of


def metadata_of(
    spec: FeatureSpec,
    layouts: Mapping[str, ArrayLayout],
    constants: Mapping[str, np.ndarray],
    written: Mapping[int, Mapping[str, Mapping[str, Any]]],
    notes: Mapping[int, Mapping[str, Any]],
    attributes: Mapping[str, Any],
) -> dict[str, bytes]:
    """Contents by path, in the order in which they are written: the outermost group's is last, and vouches for the others.

    Args:
        layouts: of the arrays with an image axis, by name.
        constants: arrays without one, by name.
        written: what is recorded of each shard, by unit and by name of its array.
        notes: on invalid rows, by row.
        attributes: information beside the spec.
    """
    arrays = {}
    for name, layout in layouts.items():
        shards = [{k: v for k, v in written[unit][name].items() if k != "array"} for unit in range(layout.n_shards)]
        arrays[name] = layout.to_zarr({"shards": shards})
    for name, values in constants.items():
        layout = flat_layout_of(name, values)
        shards = [record_of(layout, shard, values[slice(*layout.rows(shard))]) for shard in range(layout.n_shards)]
        arrays[name] = layout.to_zarr({"shards": shards})
    described = {
        "key": spec.key,
        "spec": spec.to_dict(),
        **attributes,
        "invalid": [notes[row] for row in sorted(notes)],
        "arrays": {name: xxhash.xxh3_128_hexdigest(content) for name, content in arrays.items()},
    }
    group = {"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTE: described}}
    files = {f"{name}/zarr.json": GROUP for name in groups_of(list(arrays))}
    files |= {f"{name}/zarr.json": content for name, content in arrays.items()}
    return {**files, "zarr.json": with_digest(group)}
