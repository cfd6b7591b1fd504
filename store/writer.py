"""Writing a feature set: shard by shard, staged and journalled, published by one rename."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from store.array import read_tail
from store.disk import DIRECT_NBYTES, NO_SPACE, exchange, link, sync_folder, write_file
from store.errors import StoreError
from store.journal import JOURNAL, add_record, read_records, write_records
from store.layout import ATTRIBUTE, GROUP, ArrayLayout, count_nonfinite, groups_of
from store.lock import Lock
from store.reader import FeatureStore, with_digest
from store.spec import FeatureSpec

WRITERS = 4  # arrays of a unit that are written at a time


class FeatureWriter:
    """Writes one feature set. Work units are shards: unit u holds rows [u * shard_rows, (u + 1) * shard_rows).

    All arrays lie under `<parent>/.staging/<name>-<key>` until `finish` moves that folder to `path`. A unit counts once its
    files and its journal line are on disk; a writer that was killed goes on with `missing_units()`. Use it in a `with`
    statement, or call `close`: one process at a time may write a feature set.

    With a `base`, an older feature set at `path`, shards that both have are linked, not copied; only the others are to be
    written. `finish` puts the new set in the place of the old one.

    Args:
        path: where the finished feature set will be.
        spec: what it holds.
        layouts: arrays with one row per image; all share `shard_rows`.
        constants: small arrays without an image axis (the final norm), by name.
        base: what to carry over: a set of other views, blocks, kinds, or of the first of these images.
        skip: (array, shard) of the base that must not be carried over, being damaged.

    Raises:
        StoreError: `path` is occupied, another process writes there, the staged part has another layout, or no space is left.
    """

    def __init__(
        self,
        path: Path,
        spec: FeatureSpec,
        layouts: Sequence[ArrayLayout],
        constants: Mapping[str, np.ndarray] | None = None,
        base: FeatureStore | None = None,
        skip: Sequence[tuple[str, int]] = (),
    ):
        self.path, self.spec, self.base = Path(path), spec, base
        self.layouts = {layout.name: layout for layout in layouts}
        self.constants = dict(constants or {})
        self._skip = set(skip)
        first = next(iter(layouts))
        assert {(a.shape[0], a.shard_rows) for a in layouts} == {(first.shape[0], first.shard_rows)}, layouts
        self.n_units, self._first = first.n_shards, first
        self.staging = self.path.parent / ".staging" / f"{self.path.name}-{spec.key}"
        self._lock = Lock(self.staging.with_name(self.staging.name + ".lock"), str(self.path))
        try:
            if base is None and (self.path.is_file() or any(p for p in self.path.rglob("*") if not p.is_dir())):
                raise StoreError(f"{self.path} already holds files; give another --out, or remove it first")
            self.header = {
                "key": spec.key,
                "arrays": {n: [list(a.shape), a.dtype, a.shard_rows, a.codec] for n, a in self.layouts.items()},
            }
            self._done: dict[int, dict[str, dict[str, Any]]] = {unit: {} for unit in range(self.n_units)}
            self._notes: dict[int, dict[str, Any]] = {}
            with self._space():
                if records := read_records(self.staging):
                    self._resume(records)
                else:
                    self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let another writer go on. What is journalled stays."""
        self._lock.release()
        with contextlib.suppress(OSError):  # not empty: something is staged there
            self.staging.parent.rmdir()

    def _start(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)
        for name, values in self.constants.items():
            _write_shard(self.staging, _constant(name, values), 0, values)
        records = [self.header, *self._carry()]
        write_records(self.staging, records)  # from here on, what is staged counts
        for record in records[1:]:
            self._count(record)

    def _carry(self) -> Iterator[dict[str, Any]]:
        """Link shards of the base that are also ours; a record for each unit that gets any."""
        if self.base is None:
            return
        notes = self.base.attributes["invalid"]
        for unit in range(self.n_units):
            start, stop = self._first.rows(unit)
            shards = []
            for name, layout in self.layouts.items():
                theirs = self.base.arrays.get(name)
                if theirs is None or (name, unit) in self._skip or not _same_shard(layout, theirs.layout, unit):
                    continue
                link(self.base.path / layout.file(unit), self.staging / layout.file(unit))
                shards.append({"array": name, **theirs.shards[unit]})
            if shards:
                yield {"unit": unit, "shards": shards, "invalid": [n for n in notes if start <= n["row"] < stop]}

    def _resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        if records[0] != self.header:
            raise StoreError(f"{self.staging} was begun with another layout; remove that folder to start again")
        write_records(self.staging, records)  # without the half line that a kill may have left
        for record in records[1:]:
            self._count(record)

    def _count(self, record: Mapping[str, Any]) -> None:
        """Take note of a record's shards that are whole."""
        try:
            shards = {shard["array"]: dict(shard) for shard in record["shards"]}
            notes = {note["row"]: note for note in record["invalid"]}
            start, stop = self._first.rows(unit := record["unit"])
            if type(unit) is not int or not all(start <= row < stop for row in notes):
                raise ValueError(f"rows {sorted(notes)} in unit {unit!r}")
            done = self._done[unit]
            done |= {name: shard for name, shard in shards.items() if _whole(self.staging, self.layouts[name], unit, shard)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{self.staging / JOURNAL} is not a journal of this writer ({error!r}); remove {self.staging} to start again"
            ) from error
        self._notes |= notes

    def missing_units(self) -> list[int]:
        """Units of which arrays are not written yet, in order."""
        return [unit for unit in range(self.n_units) if self.missing_arrays(unit)]

    def missing_arrays(self, unit: int) -> list[str]:
        """Arrays of a unit that are not written yet."""
        return [name for name in self.layouts if name not in self._done[unit]]

    def first_row(self, unit: int) -> int:
        """The first row of a unit that must be given to `write_unit`: those before it are taken from the base."""
        start, stop = self._first.rows(unit)
        n = len(self.base) if self.base is not None else 0
        known = all(self._in_base(name, unit) for name in self.missing_arrays(unit))
        return n if start < n < stop and known else start

    def _in_base(self, name: str, unit: int) -> bool:
        """Whether the base has the first rows of this shard."""
        theirs = self.base.arrays.get(name) if self.base is not None and (name, unit) not in self._skip else None
        return theirs is not None and unit < theirs.layout.n_shards and _same_rows(self.layouts[name], theirs.layout)

    def write_unit(self, unit: int, rows: Mapping[str, np.ndarray], notes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write one shard of each array that the unit still misses, and journal them.

        Args:
            rows: name -> stored values [rows of the unit from `first_row` on, ...].
            notes: on its invalid rows.

        Raises: StoreError: no space is left; what was journalled before is safe.
        """
        missing, given = self.missing_arrays(unit), self.first_row(unit)
        assert set(rows) >= set(missing), sorted(set(missing) - set(rows))
        start, stop = self._first.rows(unit)

        def write(name: str) -> dict[str, Any]:
            values = rows[name]
            if self.base is not None and self._in_base(name, unit):
                # The base's own rows, bit for bit, also where they were computed again for the sake of another array.
                n = min(len(self.base), stop)
                values = np.concatenate([self.base.arrays[name].stored(np.arange(start, n)), values[n - given :]])
            return {"array": name, **_write_shard(self.staging, self.layouts[name], unit, values)}

        with self._space():
            if max(self.layouts[name].nbytes(unit) for name in missing) < DIRECT_NBYTES:
                shards = [write(name) for name in missing]
            else:  # small arrays, for which the disk is mostly waited for, beside the large ones
                with ThreadPoolExecutor(WRITERS, "beyondcls-writer") as writers:
                    shards = list(writers.map(write, missing))
            carried: Sequence[Mapping[str, Any]] = self.base.attributes["invalid"] if self.base is not None else ()
            record: dict[str, Any] = {
                "unit": unit,
                "shards": shards,
                "invalid": [*(note for note in carried if start <= note["row"] < given), *notes],
            }
            add_record(self.staging, record)
        self._done[unit] |= {shard["array"]: shard for shard in shards}
        self._notes |= {note["row"]: dict(note) for note in record["invalid"]}

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write all zarr.json and move the feature set to its place.

        `attributes`: what a reader wants to know beside the spec (names of encoder and classes, problems).
        """
        if missing := self.missing_units():
            raise StoreError(f"{self.staging}: {len(missing)} of {self.n_units} shards are not written yet, first {missing[0]}")
        with self._space():
            self._describe(attributes)
            if self.base is not None:
                exchange(self.staging, self.path)
                sync_folder(self.path.parent)  # before anything of the old set goes
                sync_folder(self.staging.parent)
                shutil.rmtree(self.staging)
            else:
                if self.path.exists():
                    shutil.rmtree(self.path)  # empty folders only: __init__ refused anything else
                os.rename(self.staging, self.path)
        sync_folder(self.path.parent)
        (self.path / JOURNAL).unlink()  # after the rename: whoever is killed before it goes on with the journal
        self.close()

    def _describe(self, attributes: Mapping[str, Any]) -> None:
        """Write every zarr.json, the group's last: it vouches for the others."""
        files = {}
        for name, layout in self.layouts.items():
            shards = [{k: v for k, v in self._done[u][name].items() if k != "array"} for u in range(self.n_units)]
            files[name] = layout.to_zarr({"shards": shards})
        for name, values in self.constants.items():
            layout = _constant(name, values)
            files[name] = layout.to_zarr({"shards": [_record(layout, 0, values, layout.tail(0, *layout.encode(0, values)))]})
        for name in groups_of(list(files)):
            write_file(self.staging / name / "zarr.json", [GROUP])
        for name, content in files.items():
            write_file(self.staging / name / "zarr.json", [content])
        described = {
            "key": self.spec.key,
            "spec": self.spec.to_dict(),
            **attributes,
            "invalid": [self._notes[row] for row in sorted(self._notes)],
            "arrays": {name: xxhash.xxh3_128_hexdigest(content) for name, content in files.items()},
        }
        group = {"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTE: described}}
        write_file(self.staging / "zarr.json", [with_digest(group)])

    @contextlib.contextmanager
    def _space(self) -> Iterator[None]:
        """A full disk becomes a message."""
        try:
            yield
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            done = self.n_units - len(self.missing_units())
            needed = sum(self.layouts[name].nbytes(u) for u in range(self.n_units) for name in self.missing_arrays(u))
            free = shutil.disk_usage(self.path.parent).free
            raise StoreError(
                f"no space left while writing {self.path}: {done} of {self.n_units} units are safe in {self.staging}; "
                f"{needed / 1e9:.3g} GB more are needed, {free / 1e9:.3g} GB are free. "
                "Free some, and give the same command again"
            ) from error


def _constant(name: str, values: np.ndarray) -> ArrayLayout:
    n = len(values)
    return ArrayLayout(name, values.shape, values.dtype.name, ("channel",), shard_rows=n, chunk_rows=n)


def _same_rows(one: ArrayLayout, other: ArrayLayout) -> bool:
    """Whether two arrays differ in the number of their rows at most."""
    return all(
        getattr(one, field) == getattr(other, field) for field in ("dtype", "codec", "shard_rows", "chunk_rows", "dimensions")
    ) and (one.shape[1:] == other.shape[1:])


def _same_shard(one: ArrayLayout, other: ArrayLayout, shard: int) -> bool:
    return _same_rows(one, other) and shard < other.n_shards and one.rows(shard) == other.rows(shard)


def _write_shard(folder: Path, layout: ArrayLayout, shard: int, rows: np.ndarray) -> dict[str, Any]:
    """Write a shard file; its digests and its record are computed meanwhile."""
    data, padding = layout.encode(shard, rows)
    with ThreadPoolExecutor(1, "beyondcls-digests") as meanwhile:
        tail = meanwhile.submit(layout.tail, shard, data, padding)
        record = meanwhile.submit(lambda: _record(layout, shard, rows, tail.result()))

        def parts() -> Iterator[memoryview | bytes]:
            yield data
            yield padding
            yield tail.result()

        write_file(folder / layout.file(shard), parts(), direct=len(data) >= DIRECT_NBYTES)
        return record.result()


def _record(layout: ArrayLayout, shard: int, rows: np.ndarray, tail: bytes) -> dict[str, Any]:
    return {
        "rows": list(layout.rows(shard)),
        "nbytes": layout.nbytes(shard),
        "xxh3_128": xxhash.xxh3_128_hexdigest(tail),
        "nonfinite": count_nonfinite(rows),
    }


def _whole(folder: Path, layout: ArrayLayout, shard: int, record: Mapping[str, Any]) -> bool:
    """Whether a shard file is there with the size and the tail that its record says."""
    file = folder / layout.file(shard)
    if not file.is_file() or file.stat().st_size != layout.nbytes(shard):
        return False
    with file.open("rb") as source:
        return xxhash.xxh3_128_hexdigest(read_tail(source.fileno(), layout, shard)) == record["xxh3_128"]


def discard_staging(path: Path, key: str) -> None:
    """Remove what a kill during `finish` may have left of an older set; nothing while a writer is at work there."""
    staging = path.parent / ".staging" / f"{path.name}-{key}"
    if staging.exists():
        lock = Lock(staging.with_name(staging.name + ".lock"), str(path))
        shutil.rmtree(staging)
        lock.release()
        with contextlib.suppress(OSError):
            staging.parent.rmdir()
