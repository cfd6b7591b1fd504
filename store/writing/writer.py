"""Writing a feature set: shard by shard, staged and journalled, published by one rename."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from store.errors import StoreError
from store.format.layout import ATTRIBUTE, GROUP, ArrayLayout, groups_of
from store.format.reader import FeatureStore, with_digest
from store.format.spec import FeatureSpec
from store.places import LocalFolder
from store.places.disk import NO_SPACE, exchange, link, sync_folder, write_file
from store.writing.handed_writer import workers_folder
from store.writing.journal import JOURNAL, add_record, process_journal, read_records, write_records
from store.writing.lock import BusyError, Lock
from store.writing.shard import constant, is_whole, record_of, same_shard, write_shard
from store.writing.unit_writer import UnitWriter


class FeatureWriter(UnitWriter):
    """Writes one feature set. Work units are shards: unit u holds rows [u * shard_rows, (u + 1) * shard_rows).

    All arrays are under `<parent>/.staging/<name>-<key>` until `finish` moves that folder to `path`. A unit counts once its
    files and its journal line are on disk; a writer that was killed is resumed with `missing_units()`. Use it in a `with`
    statement, or call `close`.

    One process at a time may write a feature set, or several that are all `shared`: each claims a unit before it computes it,
    keeps its own journal, and the first to find all units written publishes the set. Any of them may be killed, and any
    number started again.

    With a `base`, another feature set of the same encoder, rows that both have are taken over: shards that are alike are
    linked, other rows are copied. Only what the base lacks has to be written.

    Args:
        path: where the finished feature set will be.
        spec: what it holds.
        layouts: arrays with one row per image; all share `shard_rows`.
        constants: small arrays without an image axis (the final norm), by name.
        base: the set to take rows from, with other views, blocks, kinds or images, wherever it is.
        base_rows: [n_images] the base's row of each image, -1 where it has none; by default its images come first here.
        skip: (array, shard) of the base that must not be taken over because they are damaged.
        replaces: this set replaces the one at `path` when it is finished; else `path` must be free.
        shared: other processes may write other units at the same time.

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
        base_rows: np.ndarray | None = None,
        skip: Sequence[tuple[str, int]] = (),
        replaces: bool = False,
        shared: bool = False,
    ):
        super().__init__(layouts, base, base_rows, skip)
        self.path, self.spec, self.shared, self._replaces = Path(path), spec, shared, replaces
        self.constants = dict(constants or {})
        self.staging = self.path.parent / ".staging" / f"{self.path.name}-{spec.key}"
        self._journal = process_journal() if shared else JOURNAL
        self._claims_folder = self.staging.with_name(self.staging.name + ".claims")
        self._claims: dict[int, Lock] = {}
        self._lock = Lock(self.staging.with_name(self.staging.name + ".lock"), str(self.path), shared)
        try:
            if (
                not replaces
                and not (shared and self._is_published())
                and (self.path.is_file() or any(p for p in self.path.rglob("*") if not p.is_dir()))
            ):
                raise StoreError(f"{self.path} already holds files; give another --out, or remove it first")
            self.header = {
                "key": spec.key,
                "arrays": {n: [list(a.shape), a.dtype, a.shard_rows, a.codec] for n, a in self.layouts.items()},
            }
            self._notes: dict[int, dict[str, Any]] = {}
            with self._full_disk_reported(), self._exclusive():
                if records := read_records(self.staging):
                    self._resume(records)
                elif shared and self._is_published():
                    self._all_done()
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
        for claim in self._claims.values():
            claim.release()
        self._claims.clear()
        if not self.shared:  # of workers that ended before this
            shutil.rmtree(workers_folder(self.staging), ignore_errors=True)
        self._lock.release()
        for folder in (self._claims_folder, self.staging.parent):
            with contextlib.suppress(OSError):  # not empty: something is staged there
                folder.rmdir()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Run a block in one process at a time, of those that share the writing."""
        lock = Lock(self._claims_folder / "all.lock", str(self.path), wait=True) if self.shared else None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _start(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)
        for name, values in self.constants.items():
            write_shard(self.staging, constant(name, values), 0, values)
        records = [self.header, *self._carry()]
        write_records(self.staging, records)  # from here on, what is staged counts
        for record in records[1:]:
            self._count(record)

    def _carry(self) -> Iterator[dict[str, Any]]:
        """Link shards that the base and this set have in common; yield a record for each unit with any."""
        if self.base is None or not isinstance(self.base.place, LocalFolder):
            return
        for unit in range(self.n_units):
            rows = np.arange(*self._layout.rows(unit))
            if not np.array_equal(self._base_rows[rows], rows):
                continue
            shards = []
            for name, layout in self.layouts.items():
                theirs = self.base.arrays.get(name)
                if theirs is None or (name, unit) in self._skip or not same_shard(layout, theirs.layout, unit):
                    continue
                link(self.base.path / theirs.layout.file(unit), self.staging / layout.file(unit))
                shards.append({"array": name, **theirs.shards[unit]})
            if shards:
                yield {"unit": unit, "shards": shards, "invalid": self._base_notes(rows)}

    def _resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        if records[0] != self.header:
            raise StoreError(f"{self.staging} was begun with another layout; remove that folder to start again")
        if not self.shared:
            write_records(self.staging, records)  # in one journal, without half lines left by kills
        for record in records[1:]:
            self._count(record)

    def claim(self, unit: int) -> bool:
        """Take a unit that still misses arrays; false if it misses none, or another process has it.

        A claim ends with `write_unit`, or with this process.
        """
        if not self.missing_arrays(unit):
            return False
        if self.shared:
            try:
                claim = Lock(self._claims_folder / f"{unit}.lock", f"unit {unit} of {self.path}")
            except BusyError:
                return False
            self._claims[unit] = claim
            self._refresh()  # its last holder may have written it
            if not self.missing_arrays(unit):
                self._claims.pop(unit).release()
                return False
        return True

    def _refresh(self) -> bool:
        """Count what others that share the writing have done; false if the last of them has published the set."""
        records = read_records(self.staging)
        for record in records[1:]:
            if record.get("unit") not in self._done or self.missing_arrays(record["unit"]):
                self._count(record)
        if not records:
            self._all_done()
        return bool(records)

    def _all_done(self) -> None:
        self._done = {unit: {name: {} for name in self.layouts} for unit in range(self.n_units)}

    def _is_published(self) -> bool:
        with contextlib.suppress(StoreError):
            return FeatureStore.describe(self.path).spec.key == self.spec.key
        return False

    def _count(self, record: Mapping[str, Any]) -> None:
        """Count a record's shards that are whole."""
        try:
            shards = {shard["array"]: dict(shard) for shard in record["shards"]}
            notes = {note["row"]: note for note in record["invalid"]}
            start, stop = self._layout.rows(unit := record["unit"])
            if type(unit) is not int or not all(start <= row < stop for row in notes):
                raise ValueError(f"rows {sorted(notes)} in unit {unit!r}")
            done = self._done[unit]
            staged = LocalFolder(self.staging)
            done |= {n: s for n, s in shards.items() if is_whole(staged, self.layouts[n], unit, s["xxh3_128"])}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{self.staging / JOURNAL} is not a journal of this writer ({error!r}); remove {self.staging} to start again"
            ) from error
        self._notes |= notes

    def write_unit(self, unit: int, rows: Mapping[str, np.ndarray], notes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write one shard of each array that the unit still misses, and journal them; arguments are those of `write_shards`.

        Raises:
            StoreError: no space is left; what was journalled before is safe.
        """
        with self._full_disk_reported():
            record = self.write_shards(self.staging, unit, rows, notes)
            add_record(self.staging, record, self._journal)
        if unit in self._claims:
            self._claims.pop(unit).release()
        self._done[unit] |= {shard["array"]: shard for shard in record["shards"]}
        self._notes |= {note["row"]: dict(note) for note in record["invalid"]}

    def add(self, record: Mapping[str, Any]) -> None:
        """Journal a unit whose shards a `HandedWriter` has put in their places, perhaps on another machine.

        Raises:
            StoreError: it was written already, with other values; or what is there is not what the record says; or no space
                is left.
        """
        unit, done = record["unit"], self._done[record["unit"]]
        others = [s["array"] for s in record["shards"] if s["array"] in done and done[s["array"]]["xxh3_128"] != s["xxh3_128"]]
        if others:
            raise StoreError(
                f"unit {unit} of {self.path} was computed twice, and {others[0]} differs; let workers run on machines of one "
                "kind, with the same versions of packages"
            )
        with self._full_disk_reported():
            add_record(self.staging, record, self._journal)
        self._count(record)
        if missing := self.missing_arrays(unit):
            raise StoreError(
                f"a worker has written unit {unit} of {self.path}, but {missing[0]} is not in {self.staging} as it says; the "
                "folder must be the same on all machines"
            )

    def finish(self, attributes: Mapping[str, Any]) -> bool:
        """Write all zarr.json and move the feature set to its place. False if others that share the writing are not done.

        `attributes`: information beside the spec (names of encoder and classes, problems).

        Raises:
            StoreError: units are missing, and nobody else can be writing them; or no space is left.
        """
        with self._exclusive():
            published = False
            if self.shared:
                published = not self._refresh()  # by the last of the others
            if missing := self.missing_units():
                if self.shared:
                    return False
                raise StoreError(
                    f"{self.staging}: {len(missing)} of {self.n_units} shards are not written yet, first {missing[0]}"
                )
            if not published:
                with self._full_disk_reported():
                    if self.shared:
                        write_records(self.staging, read_records(self.staging))  # one journal, which is one file to remove
                    self._describe(attributes)
                    self._publish()
        self.close()
        return True

    def _publish(self) -> None:
        if self._replaces and self.path.exists() and any(self.path.iterdir()):
            exchange(self.staging, self.path)
            sync_folder(self.path.parent)  # before anything of the old set is removed
            sync_folder(self.staging.parent)
            shutil.rmtree(self.staging)
        else:
            if self.path.exists():
                shutil.rmtree(self.path)  # empty folders only: __init__ refused anything else
            os.rename(self.staging, self.path)
        sync_folder(self.path.parent)
        (self.path / JOURNAL).unlink()  # after the rename: a writer killed before it resumes with the journal
        for stale in self._claims_folder.glob("*.lock"):
            if stale.stem.isdecimal():  # of processes that were killed
                stale.unlink()

    def _describe(self, attributes: Mapping[str, Any]) -> None:
        """Write every zarr.json, the group's last: it vouches for the others."""
        files = {}
        for name, layout in self.layouts.items():
            shards = [{k: v for k, v in self._done[u][name].items() if k != "array"} for u in range(self.n_units)]
            files[name] = layout.to_zarr({"shards": shards})
        for name, values in self.constants.items():
            layout = constant(name, values)
            files[name] = layout.to_zarr({"shards": [record_of(layout, 0, values, layout.tail(0, *layout.encode(0, values)))]})
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
    def _full_disk_reported(self) -> Iterator[None]:
        """Turn the error of a full disk into a message."""
        try:
            yield
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            done = self.n_units - len(self.missing_units())
            missing_nbytes = sum(self.layouts[name].nbytes(u) for u in range(self.n_units) for name in self.missing_arrays(u))
            free = shutil.disk_usage(self.path.parent).free
            raise StoreError(
                f"no space left while writing {self.path}: {done} of {self.n_units} units are safe in {self.staging}; "
                f"{missing_nbytes / 1e9:.3g} GB more are needed, {free / 1e9:.3g} GB are free. "
                "Free some, and give the same command again"
            ) from error


def discard_staging(path: Path, key: str) -> None:
    """Remove what a kill during `finish` may have left behind; nothing while a writer is at work there."""
    (path / JOURNAL).unlink(missing_ok=True)
    staging = path.parent / ".staging" / f"{path.name}-{key}"
    if staging.exists():
        lock = Lock(staging.with_name(staging.name + ".lock"), str(path))
        shutil.rmtree(staging)
        lock.release()
        with contextlib.suppress(OSError):
            staging.parent.rmdir()
