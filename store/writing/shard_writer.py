"""Units of a feature set: which arrays each of them misses, and writing their shards."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from store.format.layout import ArrayLayout
from store.format.reader import FeatureStore
from store.places.aligned import aligned_zeros
from store.places.disk import DIRECT_NBYTES
from store.writing.shard import same_values, write_shard

WRITERS = 4  # arrays of a unit that are written at a time


class ShardWriter:
    """Writes shards of units: unit u holds rows [u * shard_rows, (u + 1) * shard_rows) of all arrays.

    Args:
        layouts: arrays with one row per image; all share `shard_rows`.
        base, base_rows, skip: as for `FeatureWriter`.
    """

    def __init__(
        self,
        layouts: Sequence[ArrayLayout],
        base: FeatureStore | None = None,
        base_rows: np.ndarray | None = None,
        skip: Sequence[tuple[str, int]] = (),
    ):
        self.base, self._skip = base, set(skip)
        self.layouts = {layout.name: layout for layout in layouts}
        first = next(iter(layouts))
        rows = np.arange(first.shape[0])
        n_base = 0 if base is None else len(base)
        self._base_rows = np.where(rows < n_base, rows, -1) if base_rows is None else np.asarray(base_rows)
        assert self._base_rows.shape == rows.shape, (self._base_rows.shape, rows.shape)
        assert {(a.shape[0], a.shard_rows) for a in layouts} == {(first.shape[0], first.shard_rows)}, layouts
        self.n_units, self._layout = first.n_shards, first
        self._done: dict[int, dict[str, dict[str, Any]]] = {unit: {} for unit in range(self.n_units)}

    def missing_units(self) -> list[int]:
        """Units of which arrays are not written yet, in order."""
        return [unit for unit in range(self.n_units) if self.missing_arrays(unit)]

    def missing_arrays(self, unit: int) -> list[str]:
        """Arrays of a unit that are not written yet."""
        return [name for name in self.layouts if name not in self._done[unit]]

    def rows_to_compute(self, unit: int, names: Sequence[str]) -> np.ndarray:
        """Rows for which `write_shards` must be given some arrays of a unit, ascending: all, or those that the base lacks."""
        rows = np.arange(*self._layout.rows(unit))
        return rows[self._base_rows[rows] < 0] if all(self._is_in_base(name, unit) for name in names) else rows

    def arrays_to_compute(self, unit: int) -> list[str]:
        """Arrays of a unit that must be given to `write_shards`: missing ones that the base does not have whole."""
        lacks_rows = bool((self._base_rows[slice(*self._layout.rows(unit))] < 0).any())
        return [name for name in self.missing_arrays(unit) if lacks_rows or not self._is_in_base(name, unit)]

    def _is_in_base(self, name: str, unit: int) -> bool:
        """Whether the base has its rows of this shard."""
        theirs = self.base.arrays.get(name) if self.base is not None and (name, unit) not in self._skip else None
        return theirs is not None and same_values(self.layouts[name], theirs.layout)

    def write_shards(
        self, unit: int, names: Sequence[str], rows: Mapping[str, np.ndarray], file_of: Callable[[str], Path]
    ) -> dict[str, dict[str, Any]]:
        """Write one shard of each of some arrays of a unit; what is recorded of each, by name.

        Args:
            names: that the unit misses.
            rows: name -> stored values, of `arrays_to_compute` at least; [n, ...] of all rows of the unit, or where the base
                has the array, of those that it lacks.
            file_of: where the shard of an array is written, in a folder that exists.
        """
        to_compute = set(names) & set(self.arrays_to_compute(unit))
        assert to_compute <= set(rows), sorted(to_compute - set(rows))

        def write(name: str) -> dict[str, Any]:
            return write_shard(file_of(name), self.layouts[name], unit, self.stored(unit, name, rows))

        if max(self.layouts[name].nbytes(unit) for name in names) < DIRECT_NBYTES:
            return {name: write(name) for name in names}
        # Small arrays, which mostly wait for the disk, beside the large ones.
        with ThreadPoolExecutor(WRITERS, "beyondcls-writer") as writers:
            return dict(zip(names, writers.map(write, names), strict=True))

    def stored(self, unit: int, name: str, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Values of all rows of a unit: those that are given, and those that the base has.

        The base's rows are taken bit for bit, also where they were computed again because another array needs them.
        """
        unit_rows = np.arange(*self._layout.rows(unit))
        theirs = self._base_rows[unit_rows]
        taken = theirs >= 0
        if self.base is None or not taken.any() or not self._is_in_base(name, unit):
            return rows[name]
        layout = self.layouts[name]
        values = aligned_zeros((len(unit_rows), *layout.shape[1:]), layout.dtype)
        values[taken] = self.base.arrays[name].stored(theirs[taken])
        if not taken.all():
            values[~taken] = rows[name][~taken] if len(rows[name]) == len(unit_rows) else rows[name]
        return values

    def all_notes(self, unit: int, notes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Notes on invalid rows of a unit, and those of the base, by row."""
        rows = np.arange(*self._layout.rows(unit))
        noted = {note["row"]: note for note in (*self._base_notes(rows), *notes)}
        return [noted[row] for row in sorted(noted)]

    def _base_notes(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """Notes of the base on those of these rows that it has, under their numbers in this set."""
        notes = {} if self.base is None else {note["row"]: note for note in self.base.attributes["invalid"]}
        theirs = ((int(row), notes.get(int(self._base_rows[row]))) for row in rows if self._base_rows[row] >= 0)
        return [{**note, "row": row} for row, note in theirs if note is not None]
