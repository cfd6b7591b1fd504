"""What a new feature set takes over from another of the same encoder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.format.layout import ArrayLayout
from store.format.reader import FeatureStore
from store.places import LocalFolder
from store.places.aligned import aligned_zeros
from store.writing.shard import is_whole, same_shard, same_values


class Taking:
    """Rows of another set: shards that are alike are linked, other rows are copied.

    Args:
        layouts: of the new set, by name; all have one row per image and share `shard_rows`.
        base: the other set, with other views, blocks, kinds or images, wherever it is; None: nothing is taken over.
        base_rows: [n_images] the base's row of each image, -1 where it has none; by default its images come first here.
        skip: (array, shard) of the base that must not be taken over, e.g. because they are damaged.
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
        return rows[self._base_rows[rows] < 0] if all(self._is_in_base(name, unit) for name in names) else rows

    def arrays_to_compute(self, unit: int) -> list[str]:
        """Arrays of a unit that the base does not have whole."""
        lacks_rows = bool((self._base_rows[slice(*self._layout.rows(unit))] < 0).any())
        return [name for name in self._layouts if lacks_rows or not self._is_in_base(name, unit)]

    def _is_in_base(self, name: str, unit: int) -> bool:
        """Whether the base has its rows of this shard."""
        theirs = self.base.arrays.get(name) if self.base is not None and (name, unit) not in self._skip else None
        return theirs is not None and same_values(self._layouts[name], theirs.layout)

    def shard(self, unit: int, name: str) -> tuple[Path, dict[str, Any]] | None:
        """The file of the base that is a shard of this set, and its record; None where none is on this machine, and sound."""
        if self.base is None or not isinstance(self.base.place, LocalFolder) or (name, unit) in self._skip:
            return None
        rows, theirs = np.arange(*self._layout.rows(unit)), self.base.arrays.get(name)
        if theirs is None or not np.array_equal(self._base_rows[rows], rows):
            return None
        if not same_shard(self._layouts[name], theirs.layout, unit):
            return None
        if not is_whole(self.base.place, theirs.layout, unit, theirs.shards[unit]["xxh3_128"]):
            return None  # its rows are read instead, which says what is damaged
        return self.base.path / theirs.layout.file(unit), dict(theirs.shards[unit])

    def stored(self, unit: int, name: str, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Values of all rows of a unit: those that are given, and those that the base has.

        The base's rows are taken bit for bit, also where they were computed again because another array needs them.

        Args:
            rows: name -> stored values, of `arrays_to_compute` at least; [n, ...] of all rows of the unit, or where the base
                has the array, of those that it lacks.
        """
        unit_rows = np.arange(*self._layout.rows(unit))
        theirs = self._base_rows[unit_rows]
        taken = theirs >= 0
        if self.base is None or not taken.any() or not self._is_in_base(name, unit):
            return rows[name]
        layout = self._layouts[name]
        values = aligned_zeros((len(unit_rows), *layout.shape[1:]), layout.dtype)
        values[taken] = self.base.arrays[name].stored(theirs[taken])
        if not taken.all():
            values[~taken] = rows[name][~taken] if len(rows[name]) == len(unit_rows) else rows[name]
        return values

    def notes(self, unit: int, notes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Notes on invalid rows of a unit, and those of the base, by row."""
        rows = np.arange(*self._layout.rows(unit))
        of_base = {} if self.base is None else {note["row"]: note for note in self.base.attributes["invalid"]}
        theirs = ((int(row), of_base.get(int(self._base_rows[row]))) for row in rows if self._base_rows[row] >= 0)
        noted: dict[int, Mapping[str, Any]] = {row: {**note, "row": row} for row, note in theirs if note is not None}
        noted |= {note["row"]: note for note in notes}
        return [noted[row] for row in sorted(noted)]
