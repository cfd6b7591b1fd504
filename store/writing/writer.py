"""Writing a feature set: unit by unit, by any number of processes that need no lock."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from store.errors import StoreError
from store.format.layout import ATTRIBUTE, ArrayLayout, flat_layout, groups_of
from store.format.reader import FeatureStore
from store.format.spec import FeatureSpec
from store.format.unfinished import HEADER, WRITING, read_record, record_bytes, record_name
from store.places import LocalFolder, place_at
from store.places.object_store import REQUESTS, ObjectStore
from store.places.place import map_parallel
from store.writing import claims
from store.writing.claims import Claims, naps
from store.writing.publishing import Found, InFolder, InObjectStore
from store.writing.shard import Taking, create_shard, is_whole, metadata_of, read_shard

IN_VAIN = 8  # tries to claim a unit, after which a task lists what others have done
FEW = 8  # units that are looked for one by one; listings are slow work for services
TRIES = 10  # times that a set may be published or removed while it is being begun
IGNORED = (
    "ignores the condition of a write (If-None-Match: *), so tasks could overwrite each other's files; extract to a folder, "
    "which several tasks must share, and send it from there: `beyondcls store push`"
)
# How the values of some arrays of a unit differ, those that are there and those computed here; None if not beyond rounding.
Disagreement = Callable[[int, Mapping[str, np.ndarray], Mapping[str, np.ndarray]], str | None]


class _Put(NamedTuple):
    """A shard that was put in its place: its record; where others have put other bytes there, these and ours."""

    record: Mapping[str, Any]
    ours: np.ndarray | None = None
    theirs: np.ndarray | None = None


class FeatureWriter:
    """Writes one feature set. Unit u is shard u of every array with an image axis, [u * shard_rows, (u + 1) * shard_rows).

    Every file is created where there is none. Whoever finds a file compares it with what it computed itself: the same bytes are
    adopted, and so are values that differ by rounding, as those of other processors do; beyond that it refuses to go on. A
    unit counts once its record is there, which is written after its shards; whoever finds all records writes every
    zarr.json, the group's last, and publishes the set. So any number of processes may write at the same time, on machines
    of several kinds; any of them may be killed, and any number started again. No lock decides anything: claims on units only
    save work. Use it in a `with` statement, or call `close`.

    Args:
        where: folder of the finished set, or its address in an object store.
        spec: what it holds.
        layouts: arrays with one row per image; all share `shard_rows`.
        constants: arrays without an image axis (the final norm, truths), by name.
        base, base_rows, skip: a set to take rows from, as for `Taking`; of no use in an object store.
        replaces: this set replaces the one in the folder when it is finished, which is there now, or was found there before;
            else the folder must be free.
        disagreement: compares values where bytes differ; None: no difference is allowed.
        computed_by: what computes here, for the record of each unit. If units were computed by several, the set says which.

    Raises:
        StoreError: the place is occupied, or the set was begun with another layout; no space is left; or the service cannot
            write conditionally.
    """

    def __init__(
        self,
        where: str | Path,
        spec: FeatureSpec,
        layouts: Sequence[ArrayLayout],
        constants: Mapping[str, np.ndarray] | None = None,
        base: FeatureStore | None = None,
        base_rows: np.ndarray | None = None,
        skip: Sequence[tuple[str, int]] = (),
        replaces: bool | Found = False,
        disagreement: Disagreement | None = None,
        computed_by: Mapping[str, Any] | None = None,
    ):
        self.layouts = {layout.name: layout for layout in layouts}
        self.spec, self.constants = spec, dict(constants or {})
        self.taking = Taking(self.layouts, base, base_rows, skip)
        self._layout, self.n_units = layouts[0], layouts[0].n_shards
        self._disagreement, self._computed_by = disagreement, dict(computed_by or {})
        place, path = place_at(where), Path(where)
        found = replaces if isinstance(replaces, Found) else Found.at(path, replaces)
        self.destination: InFolder | InObjectStore = (
            InObjectStore(place, spec.key) if isinstance(place, ObjectStore) else InFolder(path, spec.key, found)
        )
        self.place = self.destination.place
        self._written: set[int] = set()  # units that have a record
        self._records: dict[int, dict[str, Any]] = {}  # those that were read, or written by this process
        self._claims = Claims(self.place)
        self._published, self._in_vain, self._refreshed = False, 0, time.monotonic()
        self._open_or_create()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other writers go on at once. What is written stays."""
        self._claims.close(self._published)
        self.destination.tidy()

    @property
    def staging(self) -> Path:
        """The folder in which files are until the set is published."""
        assert isinstance(self.destination, InFolder), self.destination
        return self.destination.staging

    def _open_or_create(self) -> None:
        """Find what is there, or put the header and the constants there."""
        constants = {name: flat_layout(name, values.shape, values.dtype.name) for name, values in self.constants.items()}
        layouts = [*self.layouts.values(), *constants.values()]
        names = [layout.name for layout in layouts]
        files = {layout.file(unit): layout.nbytes(unit) for layout in layouts for unit in range(layout.n_shards)}
        described = {f"{name}/zarr.json" for name in (*names, *groups_of(names))}
        for _ in range(TRIES):
            if self._look_for_set():
                return
            try:
                with self.destination.reporting(sum(files.values())):
                    self.destination.begin(files.keys() | described)
                    self._create_header()
                    if self._look_for_set():  # it was finished in between, and the header is of no use
                        return
                    for name, values in self.constants.items():
                        for shard in range(constants[name].n_shards):
                            rows = values[slice(*constants[name].rows(shard))]
                            if self._put(constants[name], shard, rows).theirs is not None:  # nobody computes them
                                raise self._difference_error(constants[name], shard, "")
                    break
            except FileNotFoundError:  # another has published it, or it was removed
                continue
        else:
            raise self._removed_error()
        sizes = self.place.sizes()
        recorded = [unit for unit in self.missing_units() if record_name(unit) in sizes]
        whole = {u for u in recorded if all(sizes.get(a.file(u)) == a.nbytes(u) for a in self.layouts.values())}
        # Somebody has removed shards of the others; a listing has shards after records, so none is still to come.
        self.place.remove([record_name(unit) for unit in recorded if unit not in whole])
        self._written |= whole

    def _create_header(self) -> None:
        """The first file, by which a service shows that it refuses a second one of a name."""
        arrays = {n: [list(a.shape), a.dtype, a.shard_rows, a.codec] for n, a in self.layouts.items()}
        base = None if self.taking.base is None else self.taking.base.where
        header = json.dumps({"key": self.spec.key, "arrays": arrays, "base": base}).encode()
        accepted = self.place.create(HEADER, [header], len(header)) and self.place.create(HEADER, [header], len(header))
        begun = self.place.content_now(HEADER)
        if (accepted or begun is None) and self._look_for_set():  # others have finished it, and removed the header
            return
        if accepted:
            self.place.remove([HEADER])
            raise StoreError(f"{self.destination.where} {IGNORED}")
        if begun is None:
            raise FileNotFoundError(HEADER)
        try:
            begun_as = [json.loads(begun)[name] for name in ("key", "arrays")]  # in which all writers of a set must agree
        except (ValueError, KeyError, TypeError, RecursionError):
            begun_as = []
        if begun_as != [self.spec.key, arrays]:
            raise StoreError(
                f"{self.place.address()} was begun with other shards, or other options; give the command that it was begun "
                "with again, or remove it: `beyondcls store rm` with its folder in .staging, or at an object store `beyondcls "
                "store gc --unused-for 1` a day after its last file was written"
            )

    def _look_for_set(self) -> bool:
        """Whether the finished set is there.

        Raises:
            StoreError: another one is.
        """
        self._published = self._published or self.destination.is_published()
        return self._published

    def missing_units(self) -> list[int]:
        """Units that are not written yet, in order, as far as this writer knows."""
        return [] if self._published else [u for u in range(self.n_units) if u not in self._written]

    def _missing_nbytes(self) -> int:
        return sum(layout.nbytes(unit) for unit in self.missing_units() for layout in self.layouts.values())

    def arrays_to_compute(self, unit: int) -> list[str]:
        """Arrays of a unit that must be given to `write_unit`, of the rows that `taking.rows_to_compute` says."""
        return [] if self._published or unit in self._written else self.taking.arrays_to_compute(unit)

    def claim(self, unit: int) -> bool:
        """Take a unit; false if it is written, or another process has it. A claim ends with `write_unit`, or this process."""
        if time.monotonic() - self._refreshed > claims.SECONDS:  # it may have been stopped, and others have finished the set
            self._refresh()
        if self._published or unit in self._written or not self._claims.is_free(unit):
            return False
        try:
            with self.destination.reporting(self._missing_nbytes()):
                claimed = self._claims.take(unit)
        except FileNotFoundError:
            self._refresh()
            return False
        if claimed and self._has_record(unit):  # its last holder has written it
            self._claims.forget(unit)
            claimed = False
        self._in_vain = 0 if claimed else self._in_vain + 1
        if self._in_vain == IN_VAIN:  # while a task does its share, nothing has to be listed
            self._in_vain = 0
            self._refresh()
        return claimed

    def _has_record(self, unit: int) -> bool:
        if self.place.content_now(record_name(unit)) is None:
            return False
        self._written.add(unit)
        return True

    def _refresh(self) -> None:
        """See what others have claimed and written.

        Raises:
            StoreError: what is being written was removed.
        """
        self._refreshed = time.monotonic()
        for _ in range(TRIES):
            missing, is_there = self.missing_units(), True
            if missing and len(missing) <= FEW:
                for unit in missing:
                    if not self._has_record(unit):
                        self._claims.look(unit)
            else:
                times = self.place.times(WRITING)
                self._claims.see(times)
                self._written |= {unit for unit in missing if record_name(unit) in times}
                is_there = HEADER in times
            # A process that publishes the set takes it away, or removes the header first: then a listing may lack records.
            if is_there and self.place.content_now(HEADER) is not None:
                return
            if self._look_for_set():
                return
        raise self._removed_error()

    def _removed_error(self) -> StoreError:
        return StoreError(f"{self.place.address()} was removed while it was being written; give the command again")

    def write_unit(self, unit: int, rows: Mapping[str, np.ndarray], notes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write one shard of each array, then the record; or adopt those of a faster process.

        Args:
            rows: as for `Taking.stored`.
            notes: on rows that are invalid; those of the base are added.

        Raises:
            StoreError: another process has written other values; no space is left; or the service fails. What was written
                before is safe.
        """
        lacking = set(self.taking.arrays_to_compute(unit)) - set(rows)
        assert not lacking, sorted(lacking)
        try:
            with self.destination.reporting(self._missing_nbytes()):
                self._records[unit] = self._write(unit, rows, notes)
        except FileNotFoundError:
            # This process was stopped for so long that another has published the set.
            self._refresh()
            if not self._published:
                raise
        self._written.add(unit)
        self._claims.forget(unit)

    def _write(self, unit: int, rows: Mapping[str, np.ndarray], notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The unit's record, ours or that of the process that was first."""

        def put(name: str) -> _Put:
            if (taken := self.taking.shard(unit, name)) is not None and isinstance(self.place, LocalFolder):
                source, record = taken
                if self.place.link(source, self.layouts[name].file(unit)):
                    return _Put(record)
            return self._put(self.layouts[name], unit, self.taking.stored(unit, name, rows))

        largest = max(layout.nbytes(unit) for layout in self.layouts.values())
        names = list(self.layouts)
        shards = dict(zip(names, map_parallel(put, names, self.place.writers(largest)), strict=True))
        if theirs := {name: put.theirs for name, put in shards.items() if put.theirs is not None}:
            ours = {name: put.ours for name, put in shards.items() if put.ours is not None}
            difference = "" if self._disagreement is None else self._disagreement(unit, theirs, ours)
            if difference is not None:  # else it is of rounding alone, and what others have written is adopted
                raise self._difference_error(self.layouts[next(iter(theirs))], unit, difference)
        record = {
            "unit": unit,
            "shards": [{"array": name, **shards[name].record} for name in names],
            "invalid": self.taking.notes(unit, notes),
            **({"computed_by": self._computed_by} if self._computed_by else {}),
        }
        first = self._parse_record(unit, self._put_once(record_name(unit), record_bytes(record)))
        for shard in first["shards"]:
            if shard["xxh3_128"] != shards[shard["array"]].record["xxh3_128"]:
                raise self._difference_error(self.layouts[shard["array"]], unit, "its record says so")
        return first

    def _put(self, layout: ArrayLayout, shard: int, rows: np.ndarray) -> _Put:
        """Create a shard file, or find what there is in its place; what nothing vouches for is replaced."""
        is_new, record = create_shard(self.place, layout, shard, rows)
        if is_new or is_whole(self.place, layout, shard, record["xxh3_128"]):
            return _Put(record, rows)
        if (read := read_shard(self.place, layout, shard)) is None:
            create_shard(self.place, layout, shard, rows, replaces=True)
            return _Put(record, rows)
        return _Put(read[1], rows, read[0])

    def _difference_error(self, layout: ArrayLayout, unit: int, difference: str) -> StoreError:
        file = self.place.address(layout.file(unit))
        how = f": {difference}" if difference else ""
        return StoreError(
            f"{file} (unit {unit} of {layout.name}) holds other values than were computed here{how}. Do all tasks have the "
            "same program and images? If no other task is at work, remove that file, or all that is begun (beyondcls store rm, "
            "with its folder in .staging), and give the command again"
        )

    def _put_once(self, name: str, content: bytes) -> bytes:
        """The content of a small file: this one, or that of the process that created it first."""
        while not self.place.create(name, [content], len(content)):
            if (first := self.place.content_now(name)) is not None:
                return first
        return content

    def _parse_record(self, unit: int, content: bytes) -> dict[str, Any]:
        try:
            record = read_record(content)
            start, stop = self._layout.rows(unit)
            if record["unit"] != unit or not all(start <= note["row"] < stop for note in record["invalid"]):
                raise ValueError(f"unit {record['unit']!r}")
            if {shard["array"]: len(shard["xxh3_128"]) for shard in record["shards"]} != dict.fromkeys(self.layouts, 32):
                raise ValueError("other arrays")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            self.place.remove([record_name(unit)])
            raise StoreError(
                f"{self.place.address(record_name(unit))} was no record of this writer ({error!r}); it is removed. Give the "
                "command again: its unit is written anew"
            ) from error
        return record

    def wait_for_others(self, stops: Callable[[], bool] = lambda: False) -> list[int]:
        """Where all units are claimed: wait until they are written, or some are free again; those, or none."""
        for nap in naps():
            if not self.missing_units() or stops():
                break
            self._refresh()
            if free := [unit for unit in self.missing_units() if self._claims.is_free(unit)]:
                return free
            if self.missing_units():
                time.sleep(nap)
        return []

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write every zarr.json, the group's last, and publish the set, unless another process does.

        Args:
            attributes: information in addition to the spec (names of encoder and classes, problems).

        Raises:
            StoreError: units are missing; what is there differs from its records; something else is at its place; or no
                space is left.
        """
        if not self._published:
            self._refresh()
        for nap in naps():
            if self._look_for_set():
                break
            if missing := self.missing_units():
                raise StoreError(
                    f"{self.destination.where}: {len(missing)} of {self.n_units} units are not written yet, first {missing[0]}"
                )
            try:
                with self.destination.reporting(0):
                    if self.n_units in self._claims.held or self._claims.take(self.n_units):  # like a unit behind the last
                        self._publish(attributes)
                        break
            except FileNotFoundError:
                self._refresh()
                continue
            time.sleep(nap)
            self._claims.look(self.n_units)
        self.close()

    def _publish(self, attributes: Mapping[str, Any]) -> None:
        if self._look_for_set():  # its last holder has published it
            return
        self._read_records()
        written = {unit: {shard["array"]: shard for shard in record["shards"]} for unit, record in self._records.items()}
        notes = {note["row"]: note for record in self._records.values() for note in record["invalid"]}
        self._check_shards(written)
        units: dict[str, list[int]] = {}  # by what computed them
        for unit in sorted(self._records):
            units.setdefault(json.dumps(self._records[unit].get("computed_by", {}), sort_keys=True), []).append(unit)
        if len(units) > 1:
            attributes = {**attributes, "computed_by": [{**json.loads(kind), "units": some} for kind, some in units.items()]}
        files = metadata_of(self.spec, self.layouts, self.constants, written, notes, attributes)
        group = files.pop("zarr.json")
        contents = map_parallel(lambda name: self._put_once(name, files[name]), list(files), self.place.writers(1 << 20))
        if wrong := [name for name, content in zip(files, contents, strict=True) if content != files[name]]:
            raise StoreError(f"{self.place.address(wrong[0])} is of other shards than were written; remove it, and try again")
        digests, theirs = (
            json.loads(content)["attributes"][ATTRIBUTE]["arrays"] for content in (group, self._put_once("zarr.json", group))
        )
        if digests != theirs:
            raise StoreError(f"{self.place.address()} was finished with other shards; remove it, and extract again")
        self.destination.publish()
        self._published = True

    @property
    def computed_by(self) -> dict[int, Mapping[str, Any]]:
        """What computed each unit, as far as this process has read that."""
        return {unit: record.get("computed_by", {}) for unit, record in self._records.items()}

    def _read_records(self) -> None:
        """Read records of others, all of which were seen; only who publishes the set needs them.

        Raises:
            FileNotFoundError: some are gone: another process publishes the set, or has found their shards damaged.
        """
        units = [unit for unit in range(self.n_units) if unit not in self._records]
        contents = list(map_parallel(lambda unit: self.place.content_now(record_name(unit)), units, REQUESTS))
        gone = [unit for unit, content in zip(units, contents, strict=True) if content is None]
        if gone:
            self._written -= set(gone)
            raise FileNotFoundError(record_name(gone[0]))
        self._records |= {unit: self._parse_record(unit, content or b"") for unit, content in zip(units, contents, strict=True)}

    def _check_shards(self, written: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> None:
        """Compare files with records; in a folder also the digests at their ends. Units that were changed become missing.

        Raises:
            StoreError: files are missing, or were changed.
        """
        sizes, wrong = self.place.sizes(), {}
        for unit, shards in written.items():
            for name, shard in shards.items():
                layout = self.layouts[name]
                is_there = sizes.get(layout.file(unit)) == layout.nbytes(unit)
                if is_there and isinstance(self.place, LocalFolder):
                    is_there = is_whole(self.place, layout, unit, shard["xxh3_128"])
                if not is_there:
                    wrong[unit] = layout.file(unit)
        if wrong and not self._look_for_set():  # else another has published it meanwhile
            self.place.remove([record_name(unit) for unit in wrong])
            self._written -= wrong.keys()
            first = next(iter(wrong))
            raise StoreError(
                f"{self.place.address(wrong[first])} (unit {first}) is not what was written there ({len(wrong)} such units); "
                "give the command again, and they are written anew"
            )
