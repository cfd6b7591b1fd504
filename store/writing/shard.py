"""Shard files and the zarr.json above them: created with digests, recorded, recognised, copied from another set; and what
can be kept of a damaged set: everything whose bytes can still be vouched for.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from store.errors import StoreError
from store.format.array import ArrayReader, read_tail
from store.format.layout import ATTRIBUTE, GROUP, ArrayLayout, count_nonfinite, flat_layout, groups_of, kind_of, with_digest
from store.format.reader import FeatureStore
from store.format.spec import FeatureSpec
from store.places import LocalFolder, SharedPlace
from store.places.place import ALIGNMENT, Place, aligned_memory, aligned_zeros

ASKED_NBYTES = 8 << 20  # of files that are looked for before they are sent: sending them in vain would take longer


def same_values(first: ArrayLayout, second: ArrayLayout) -> bool:
    """Whether a row of one array can be a row of the other, byte for byte."""
    fields = ("dtype", "codec", "dimensions")
    return all(getattr(first, f) == getattr(second, f) for f in fields) and first.shape[1:] == second.shape[1:]


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
        record = meanwhile.submit(lambda: record_of(layout, shard, rows, tail.result()))

        def parts() -> Iterator[memoryview | bytes]:
            yield data
            yield padding
            yield tail.result()

        if replaces:
            place.put(name, parts(), nbytes)
            return True, record.result()
        is_there = nbytes >= ASKED_NBYTES and place.size_now(name) is not None
        return not is_there and place.create(name, parts(), nbytes), record.result()


def record_of(layout: ArrayLayout, shard: int, rows: np.ndarray, tail: bytes) -> dict[str, Any]:
    """What zarr.json records of a shard."""
    return {
        "rows": list(layout.rows(shard)),
        "nbytes": layout.nbytes(shard),
        "xxh3_128": xxhash.xxh3_128_hexdigest(tail),
        "nonfinite": count_nonfinite(rows),
    }


def is_whole(place: Place, layout: ArrayLayout, shard: int, digest: str) -> bool:
    """Whether there is a shard file of the right size, and the digests at its end have this digest (XXH3, 128 bits)."""
    name = layout.file(shard)
    if place.size_now(name) != layout.nbytes(shard):
        return False
    return xxhash.xxh3_128_hexdigest(read_tail(place.open(name), layout, shard)) == digest


def read_shard(place: Place, layout: ArrayLayout, shard: int) -> tuple[np.ndarray, dict[str, Any]] | None:
    """Stored values of a shard, and its record; None if there is none of its size whose digests are those of its rows."""
    name, nbytes, begin = layout.file(shard), layout.nbytes(shard), layout.data_nbytes(shard)
    if place.size_now(name) != nbytes:
        return None
    content = place.open(name).read(0, nbytes, aligned_memory(nbytes + 2 * ALIGNMENT))
    if len(content) != nbytes or bytes(content[begin:]) != layout.tail(shard, content[:begin], memoryview(b"")):
        return None
    start, stop = layout.rows(shard)
    values = np.frombuffer(content[: (stop - start) * layout.row_nbytes], layout.dtype).reshape(-1, *layout.shape[1:])
    return values, record_of(layout, shard, values, bytes(content[begin:]))


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
        attributes: information in addition to the spec.
    """
    arrays = {}
    for name, layout in layouts.items():
        shards = [{k: v for k, v in written[unit][name].items() if k != "array"} for unit in range(layout.n_shards)]
        arrays[name] = layout.to_zarr({"shards": shards})
    for name, values in constants.items():
        layout = flat_layout(name, values.shape, values.dtype.name)
        rows = [values[slice(*layout.rows(shard))] for shard in range(layout.n_shards)]
        tails = [layout.tail(shard, *layout.encode(shard, part)) for shard, part in enumerate(rows)]
        shards = [record_of(layout, shard, *given) for shard, given in enumerate(zip(rows, tails, strict=True))]
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


class Taking:
    """Rows of another set: shards that are alike are linked, other rows are copied.

    Args:
        layouts: of the new set, by name; all have one row per image and share `shard_rows`.
        base: the other set, with other views, blocks, kinds or images, wherever it is; None: nothing is copied.
        base_rows: [n_images] the base's row of each image, -1 where it has none; by default its images come first here.
        skip: (array, shard) of the base that must not be copied, e.g. because they are damaged.
    """

    def __init__(
        self,
        layouts: Mapping[str, ArrayLayout],
        base: FeatureStore | None = None,
        base_rows: np.ndarray | None = None,
        skip: Sequence[tuple[str, int]] = (),
    ):
        self.base, self._layouts, self._skip = base, layouts, set(skip)
        self._layout = first = next(iter(layouts.values()))
        assert {(a.shape[0], a.shard_rows) for a in layouts.values()} == {(first.shape[0], first.shard_rows)}, layouts
        rows = np.arange(first.shape[0])
        n_base = 0 if base is None else len(base)
        self._base_rows = np.where(rows < n_base, rows, -1) if base_rows is None else np.asarray(base_rows)
        assert self._base_rows.shape == rows.shape, (self._base_rows.shape, rows.shape)

    def rows_to_compute(self, unit: int, names: Sequence[str]) -> np.ndarray:
        """Rows of a unit for which some arrays must be computed, ascending: all, or those that the base lacks."""
        rows = np.arange(*self._layout.rows(unit))
        return rows[self._base_rows[rows] < 0] if all(self._array_of_base(unit, name) for name in names) else rows

    def arrays_to_compute(self, unit: int) -> list[str]:
        """Arrays of a unit that the base does not have whole."""
        lacks_rows = bool((self._base_rows[slice(*self._layout.rows(unit))] < 0).any())
        return [name for name in self._layouts if lacks_rows or not self._array_of_base(unit, name)]

    def _array_of_base(self, unit: int, name: str) -> ArrayReader | None:
        """The base's array, if it has its rows of this shard."""
        theirs = self.base.arrays.get(name) if self.base is not None and (name, unit) not in self._skip else None
        return theirs if theirs is not None and same_values(self._layouts[name], theirs.layout) else None

    def shard(self, unit: int, name: str) -> tuple[Path, dict[str, Any]] | None:
        """The file of the base that is a shard of this set, and its record; None where none is on this machine, and sound."""
        rows, theirs = np.arange(*self._layout.rows(unit)), self._array_of_base(unit, name)
        if theirs is None or not isinstance(theirs.place, LocalFolder) or not np.array_equal(self._base_rows[rows], rows):
            return None
        ours, base = self._layouts[name], theirs.layout  # files are alike if they hold rows of the same numbers
        if (ours.shard_rows, ours.chunk_rows) != (base.shard_rows, base.chunk_rows) or unit >= base.n_shards:
            return None
        # Where it is damaged, its rows are read instead, which says what is damaged.
        if ours.rows(unit) != base.rows(unit) or not is_whole(theirs.place, base, unit, theirs.shards[unit]["xxh3_128"]):
            return None
        return theirs.place.folder / base.file(unit), dict(theirs.shards[unit])

    def stored(self, unit: int, name: str, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Values of all rows of a unit: those that are given, and those that the base has.

        The base's rows are taken bit for bit, also where they were computed again because another array needs them.

        Args:
            rows: name -> stored values, of `arrays_to_compute` at least; [n, ...] of all rows of the unit, or where the base
                has the array, of those that it lacks.
        """
        base_rows, array = self._base_rows[slice(*self._layout.rows(unit))], self._array_of_base(unit, name)
        taken = base_rows >= 0
        if array is None or not taken.any():
            return rows[name]
        layout = self._layouts[name]
        values = aligned_zeros((len(taken), *layout.shape[1:]), layout.dtype)
        values[taken] = array.stored(base_rows[taken])
        if not taken.all():
            values[~taken] = rows[name][~taken] if len(rows[name]) == len(taken) else rows[name]
        return values

    def notes(self, unit: int, notes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Notes on invalid rows of a unit, and those of the base, by row."""
        rows = np.arange(*self._layout.rows(unit))
        of_base = {} if self.base is None else {note["row"]: note for note in self.base.attributes["invalid"]}
        theirs = ((int(row), of_base.get(int(self._base_rows[row]))) for row in rows if self._base_rows[row] >= 0)
        noted: dict[int, Mapping[str, Any]] = {row: {**note, "row": row} for row, note in theirs if note is not None}
        noted |= {note["row"]: note for note in notes}
        return [noted[row] for row in sorted(noted)]


def salvage(
    path: Path, spec: FeatureSpec, layouts_of: Callable[[int | None], Sequence[ArrayLayout]]
) -> tuple[FeatureStore, list[ArrayLayout], list[tuple[str, int]]]:
    """What a `FeatureWriter` can carry over from the set at `path`; everything is read.

    A shard is vouched for by its array's zarr.json, and that by the group's. Where the array's is damaged, it is rebuilt from
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
        if (array := _trusted_array(store, layout)) is not None:
            store.arrays[layout.name] = array
            for shard in range(layout.n_shards):
                try:
                    array.check(shard)
                except StoreError:
                    bad.append((layout.name, shard))
    return store, layouts, bad


def _trusted_array(store: FeatureStore, layout: ArrayLayout) -> ArrayReader | None:
    """An array of the set; None if nothing vouches for it."""
    digest, content = store.attributes["arrays"].get(layout.name), store.place.content(f"{layout.name}/zarr.json") or b""
    if xxhash.xxh3_128_hexdigest(content) != digest:  # made again from the shards
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
