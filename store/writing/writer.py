"""Writing a feature set: shard by shard, staged and journalled, published by one rename."""

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import StoreError
from store.format.flat import flat_layout_of
from store.format.layout import ArrayLayout
from store.format.reader import FeatureStore
from store.format.spec import FeatureSpec
from store.places import LocalFolder
from store.places.disk import (
    NO_SPACE,
    PARTIAL,
    link,
    make_folder,
    place_file,
    remove_partials,
    room_left,
    sync_folder,
    write_file,
)
from store.writing.handed_writer import workers_folder
from store.writing.journal import JOURNAL, Journals, add_record, journals, process_name, read_records, write_records
from store.writing.lock import BusyError, Lock
from store.writing.metadata import metadata_of
from store.writing.publishing import UNNAMED, Found, discard, publish, staging_of
from store.writing.shard import is_whole, record_of, same_shard, write_shard
from store.writing.shard_writer import ShardWriter
from store.writing.unit_writer import UnitWriter


class FeatureWriter(ShardWriter, UnitWriter):
    """Writes one feature set. Work units are shards: unit u holds rows [u * shard_rows, (u + 1) * shard_rows).

    All arrays are under `<parent>/.staging/<name>-<key>` until `finish` moves that folder to `path`. A unit counts once its
    files and its journal line are on disk; a writer that was killed is resumed with `missing_units()`. Use it in a `with`
    statement, or call `close`.

    One process at a time may write a feature set, or several that are all `shared`: each claims a unit before it computes it,
    keeps its own journal, and the first to find all units written publishes the set. Any of them may be killed, and any
    number started again. Should two compute one unit all the same, the second to finish compares: its bytes are those of the
    first, or it is refused.

    With a `base`, another feature set of the same encoder, rows that both have are taken over: shards that are alike are
    linked, other rows are copied. Only what the base lacks has to be written.

    Args:
        path: where the finished feature set will be.
        spec: what it holds.
        layouts: arrays with one row per image; all share `shard_rows`.
        constants: arrays without an image axis (the final norm, truths), by name.
        base: the set to take rows from, with other views, blocks, kinds or images, wherever it is.
        base_rows: [n_images] the base's row of each image, -1 where it has none; by default its images come first here.
        skip: (array, shard) of the base that must not be taken over because they are damaged.
        replaces: this set replaces the one at `path` when it is finished, which is there now, or was found there before; else
            `path` must be free.
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
        replaces: bool | Found = False,
        shared: bool = False,
    ):
        super().__init__(layouts, base, base_rows, skip)
        self.path, self.spec, self.shared = Path(path), spec, shared
        self._found = replaces if isinstance(replaces, Found) else Found.at(self.path, replaces)
        self.constants = dict(constants or {})
        self.staging = staging_of(self.path, spec.key)
        self._name, self._unnamed, self._journals = process_name(), self.staging / UNNAMED, Journals(self.staging)
        self._journal = f"{JOURNAL}.{self._name}" if shared else JOURNAL
        self._claims_folder = self.staging.with_name(self.staging.name + ".claims")
        self._claims: dict[int, Lock] = {}
        self._lock = Lock(self.staging.with_name(self.staging.name + ".lock"), str(self.path), shared)
        try:
            if not (shared and self._is_published()):
                self._found.check()
            self.header = {
                "key": spec.key,
                "arrays": {n: [list(a.shape), a.dtype, a.shard_rows, a.codec] for n, a in self.layouts.items()},
            }
            self._notes: dict[int, dict[str, Any]] = {}
            self._digests: dict[tuple[int, str], tuple[str, str]] = {}  # of each shard in a journal, and who wrote it
            self._unseen: list[dict[str, Any]] = []  # records whose files are not all there: a network may be late
            self._refreshing = threading.RLock()  # a unit is claimed while another is written
            with self._full_disk_reported(), self._exclusive():
                if records := self._journals.new_records():
                    self._resume(records)
                elif shared and self._is_published():
                    self._all_done()
                else:
                    self._start()
        except BaseException:
            self.close()
            raise

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
    def _exclusive(self) -> Iterator[Lock]:
        """Run a block in one process at a time, of those that share the writing."""
        lock = Lock(self._claims_folder / "all.lock", str(self.path), wait=True) if self.shared else self._lock
        try:
            yield lock
        finally:
            if lock is not self._lock:
                lock.release()

    def _start(self) -> None:
        discard(self.staging)  # begun and killed, or a set that was replaced
        make_folder(self._unnamed)
        for name, values in self.constants.items():
            layout = flat_layout_of(name, values)
            for shard in range(layout.n_shards):
                file = self.staging / layout.file(shard)
                make_folder(file.parent)
                write_shard(file, layout, shard, values[slice(*layout.rows(shard))])
                sync_folder(file.parent)
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
        for record in records[1:]:
            self._count(record)
        if not self.shared:  # in one journal, without half lines left by kills, and without shards that are not whole
            whole = [[s for s in r["shards"] if s["array"] in self._done[r["unit"]]] for r in records[1:]]
            write_records(self.staging, [self.header, *({**r, "shards": w} for r, w in zip(records[1:], whole, strict=True))])
            shutil.rmtree(self._unnamed, ignore_errors=True)
        make_folder(self._unnamed)

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
        """Count what others that share the writing have done; false if the last of them has published the set.

        Raises:
            StoreError: two have written different bytes; or the staging folder was removed.
        """
        with self._refreshing:
            records, self._unseen = self._unseen + self._journals.new_records(), []
            for record in records:
                if record != self.header:
                    self._count(record)
        if journals(self.staging):
            return True
        if not self._is_published():
            raise StoreError(f"{self.staging} was removed while it was being written; give the command again")
        self._all_done()
        return False

    def _all_done(self) -> None:
        self._done = {unit: {name: {} for name in self.layouts} for unit in range(self.n_units)}

    def _is_published(self) -> bool:
        with contextlib.suppress(StoreError):
            return FeatureStore.describe(self.path).spec.key == self.spec.key
        return False

    def _count(self, record: Mapping[str, Any]) -> None:
        """Count a record's shards that are whole.

        Raises:
            StoreError: another record says that one of them has other bytes; or this is no record.
        """
        try:
            shards = {shard["array"]: dict(shard) for shard in record["shards"]}
            notes = {note["row"]: note for note in record["invalid"]}
            start, stop = self._layout.rows(unit := record["unit"])
            if type(unit) is not int or not all(start <= row < stop for row in notes):
                raise ValueError(f"rows {sorted(notes)} in unit {unit!r}")
            done, staged = self._done[unit], LocalFolder(self.staging)
            for name, shard in shards.items():
                self._compare(unit, name, shard["xxh3_128"], str(record.get("writer", "an earlier process")))
                if name not in done and is_whole(staged, self.layouts[name], unit, shard["xxh3_128"]):
                    done[name] = shard
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{self.staging / JOURNAL} is not a journal of this writer ({error!r}); remove {self.staging} to start again"
            ) from error
        self._notes |= notes
        if not shards.keys() <= done.keys():
            self._unseen.append(dict(record))

    def _compare(self, unit: int, name: str, digest: str, writer: str) -> None:
        """Compare a shard with what was written of it before, here or by another process."""
        first, first_writer = self._digests.setdefault((unit, name), (digest, writer))
        if digest != first:
            raise StoreError(
                f"unit {unit} of {self.path}: {first_writer} and {writer} have written different bytes of {name} (XXH3 {first} "
                f"and {digest}), so neither can be trusted. Do their programs, GPUs or images differ? Make them the same, "
                f"remove {self.staging} and start again"
            )

    def write_unit(self, unit: int, rows: Mapping[str, np.ndarray], notes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write one shard of each array that the unit still misses, and journal them.

        Args:
            rows: as for `write_shards`.
            notes: on rows that are invalid; those of the base are added.

        Raises:
            StoreError: no space is left; what was journalled before is safe.
        """
        missing = self.missing_arrays(unit)
        record: dict[str, Any] = {"unit": unit, "invalid": self.all_notes(unit, notes), "writer": self._name}
        with self._full_disk_reported():
            try:
                if not missing:
                    raise FileNotFoundError  # nothing is to be named
                for left in self._unnamed.glob(f"{unit}.*"):  # by one that was killed, or lost its claim
                    left.unlink(missing_ok=True)
                self._place(record, self.write_shards(unit, missing, rows, lambda name: self._unnamed_file(unit, name)))
            except FileNotFoundError:
                if not self.shared:
                    raise
                # This process was stopped for so long that another has taken the unit over, or published the set.
                digests = {
                    name: record_of(layout, unit, self.stored(unit, name, rows))["xxh3_128"]
                    for name, layout in self.layouts.items()
                    if name in rows
                }
                self._compare_with_others(unit, digests)
            finally:
                for name in missing:
                    self._unnamed_file(unit, name).unlink(missing_ok=True)
        if unit in self._claims:
            self._claims.pop(unit).release()

    def _unnamed_file(self, unit: int, name: str) -> Path:
        return self._unnamed / f"{unit}.{name.replace('/', '.')}.{self._name}{PARTIAL}"

    def _place(self, record: dict[str, Any], shards: Mapping[str, dict[str, Any]]) -> None:
        """Give a unit's files their names and journal them, unless another process has done so with the same bytes.

        Raises:
            StoreError: another process has written different bytes; or has taken over this writer's lock.
            FileNotFoundError: it has taken over the unit, or published the set.
        """
        unit, staged = record["unit"], LocalFolder(self.staging)
        if self.shared and self._compare_with_others(unit, {name: shard["xxh3_128"] for name, shard in shards.items()}):
            return
        self._lock.check()
        for name, shard in shards.items():
            unnamed, file = self._unnamed_file(unit, name), self.layouts[name].file(unit)
            is_placed = place_file(unnamed, self.staging / file)
            if not is_placed and not is_whole(staged, self.layouts[name], unit, shard["xxh3_128"]):
                if self.shared:  # another's may have come this moment
                    self._compare_with_others(unit, {name: shard["xxh3_128"]})
                os.replace(unnamed, self.staging / file)  # damaged, or no journal had it when a kill came
                sync_folder((self.staging / file).parent)
        record = {"unit": unit, "shards": [{"array": name, **shard} for name, shard in shards.items()], **record}
        add_record(self.staging, record, self._journal)
        self._done[unit] |= {shard["array"]: shard for shard in record["shards"]}
        self._notes |= {note["row"]: dict(note) for note in record["invalid"]}

    def _compare_with_others(self, unit: int, digests: Mapping[str, str]) -> bool:
        """Whether a unit is left to another process, which has written it, with the same bytes, or has taken over its claim.

        Raises:
            StoreError: another process has written different bytes.
        """
        published = None if self._refresh() else FeatureStore.describe(self.path)
        for name, digest in digests.items():
            if published is not None:
                self._compare(unit, name, published.add(name).shards[unit]["xxh3_128"], "whoever published it")
            self._compare(unit, name, digest, self._name)
        is_lost = unit in self._claims and self._claims[unit].is_lost()
        return published is not None or is_lost or not digests.keys() & set(self.missing_arrays(unit))

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
        with self._exclusive() as lock:
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
                    self._check_staged()
                    if self.shared:
                        write_records(self.staging, read_records(self.staging))  # one journal, which is one file to remove
                    self._describe(attributes)
                    for held in (self._lock, lock):
                        held.check()
                    self._publish()
        self.close()
        return True

    def _check_staged(self) -> None:
        """Compare the files of all units with the journals: other processes, and workers taken for dead, may have written them.

        Raises:
            StoreError: one is missing or was changed.
        """
        staged = LocalFolder(self.staging)
        for unit, shards in self._done.items():
            for name, shard in shards.items():
                if not is_whole(staged, self.layouts[name], unit, shard["xxh3_128"]):
                    raise StoreError(
                        f"unit {unit} of {self.path}: {staged.address(self.layouts[name].file(unit))} is not what the "
                        "journals say; give the command again, and it is written anew"
                    )

    def _publish(self) -> None:
        shutil.rmtree(self._unnamed, ignore_errors=True)
        remove_partials(self.staging)
        publish(self.staging, self.path, self._found)
        for name in journals(self.path)[::-1]:  # after the rename: a writer killed before it resumes with the journal
            (self.path / name).unlink()
        for stale in self._claims_folder.glob("*.lock*"):
            if stale.name.split(".")[0].isdecimal():  # of processes that were killed
                stale.unlink(missing_ok=True)

    def _describe(self, attributes: Mapping[str, Any]) -> None:
        """Write every zarr.json, the group's last."""
        files = metadata_of(self.spec, self.layouts, self.constants, self._done, self._notes, attributes)
        for name, content in files.items():
            write_file(self.staging / name, [content])

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
            raise StoreError(
                f"no space left while writing {self.path}: {done} of {self.n_units} units are safe in {self.staging}; "
                f"{missing_nbytes / 1e9:.3g} GB more are needed, {room_left(error, self.path.parent)}, and give the same "
                "command again"
            ) from error
