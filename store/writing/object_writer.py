"""Writing a feature set straight to an object store: no disk, no folder that tasks share, no locks."""

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from store.errors import StoreError
from store.format.flat import flat_layout_of
from store.format.layout import ATTRIBUTE, ArrayLayout, groups_of
from store.format.spec import FeatureSpec
from store.format.unfinished import HEADER, WRITING, is_of_writers, record_name
from store.places import place_at
from store.places.object_store import REQUESTS, ObjectStore
from store.places.parallel import map_parallel
from store.writing import leases
from store.writing.leases import Leases
from store.writing.metadata import metadata_of
from store.writing.shard import encoded_shard
from store.writing.unit_writer import UnitWriter

AT_ONCE = 8  # files on their way; one connection does not fill a network
MEMORY = 1 << 30  # bytes of shards on their way, each of which is copied, and once more in parts; one that is larger goes alone
ASKED_NBYTES = 8 << 20  # of files that are looked for before they are sent: sending them in vain would take longer
IN_VAIN = 8  # tries to claim a unit, after which a task lists what others have done
FEW = 8  # units that are looked for one by one; listings are slow work for services
POLL = 1.0  # seconds between looks at what others do, at first
IGNORED = (
    "ignores the condition of a write (If-None-Match: *), so tasks could overwrite each other's files; extract to a folder, "
    "which several tasks must share, and send it from there: `beyondcls store push`"
)


class ObjectWriter(UnitWriter):
    """Writes one feature set at its final address; the same bytes as a `FeatureWriter` writes and `upload` sends.

    Every file is created where there is none, by one request that the service refuses otherwise. Whoever finds a file
    compares it with what it computed itself, adopts it if it is the same, and refuses to go on if not. A unit counts once its
    record is there, which is written after its shards; whoever finds all records writes every zarr.json, the group's last. So
    any number of processes may write at the same time, and any of them may be killed.

    Args:
        address: where the set will be, by convention ROOT/NAME-KEY.
        spec, layouts, constants: as for `FeatureWriter`.
        shared: other processes write other units at the same time: each is claimed before it is computed. Two that are not
            shared, or a claim that has ended, cost work that is done twice and no more.

    Raises:
        StoreError: the service cannot write conditionally; the address holds another set, files of one, or an unfinished one
            in other shards.
    """

    def __init__(
        self,
        address: str,
        spec: FeatureSpec,
        layouts: Sequence[ArrayLayout],
        constants: Mapping[str, np.ndarray] | None = None,
        shared: bool = False,
    ):
        place = place_at(address)
        if not isinstance(place, ObjectStore) or not place.can_create:
            raise StoreError(f"{address} is of no service that writes a file only where there is none; give --out, a folder")
        self.place, self.spec = place, spec
        self.layouts = {layout.name: layout for layout in layouts}
        self.constants = dict(constants or {})
        self._layout = layouts[0]
        assert {(a.shape[0], a.shard_rows) for a in layouts} == {(self._layout.shape[0], self._layout.shard_rows)}, layouts
        self._written: set[int] = set()  # units that have a record
        self._records: dict[int, dict[str, Any]] = {}  # those that were read, or written by this process
        self._leases = Leases(place) if shared else None
        self._published, self._in_vain = False, 0
        self._begin()

    def close(self) -> None:
        if self._leases is not None:
            self._leases.close()

    def _begin(self) -> None:
        """Find what is there, or put the header and the constants there."""
        if self._look_for_set():
            return
        sizes = self.place.sizes()
        constants = {name: flat_layout_of(name, values) for name, values in self.constants.items()}
        layouts = [*self.layouts.values(), *constants.values()]
        files = {layout.file(unit): layout.nbytes(unit) for layout in layouts for unit in range(layout.n_shards)}
        names = [layout.name for layout in layouts]
        described = {f"{name}/zarr.json" for name in (*names, *groups_of(names))}
        if foreign := sorted(n for n in sizes.keys() - files.keys() - described if not is_of_writers(n)):
            raise StoreError(
                f"{self.place.url} holds {len(foreign)} files that do not belong to this set, first {foreign[0]}; "
                "was it begun with other shards? Remove them, or choose another root"
            )
        arrays = {n: [list(a.shape), a.dtype, a.shard_rows, a.codec] for n, a in self.layouts.items()}
        self._create_header(json.dumps({"key": self.spec.key, "arrays": arrays}).encode())
        if self._look_for_set():  # it was finished in between, and the header is of no use
            discard_records(self.place)
            return
        for name, values in self.constants.items():
            layout = constants[name]
            for shard in range(layout.n_shards):
                self._send(layout, shard, *encoded_shard(layout, shard, values[slice(*layout.rows(shard))]))
        recorded = [unit for unit in self.missing_units() if record_name(unit) in sizes]
        whole = {u for u in recorded if all(sizes.get(a.file(u)) == a.nbytes(u) for a in self.layouts.values())}
        # Somebody has removed shards of the others; a listing has shards after records, so none is still to come.
        self.place.remove([record_name(unit) for unit in recorded if unit not in whole])
        self._written |= whole

    def _create_header(self, header: bytes) -> None:
        """The first file, by which the service shows that it refuses a second one of a name."""
        accepted = self.place.create(HEADER, [header], len(header)) and self.place.create(HEADER, [header], len(header))
        begun = self.place.content_now(HEADER)
        if (accepted or begun is None) and self._look_for_set():  # others have finished it, and removed the header
            return
        if accepted:
            self.place.remove([HEADER])
            raise StoreError(f"{self.place.url} {IGNORED}")
        if begun != header:
            state = "was removed while it was begun" if begun is None else "was begun with other shards, or other options"
            raise StoreError(
                f"{self.place.url} {state}; give the command that it was begun with again, or remove it: `beyondcls store gc` "
                "does, a day after its last file was written"
            )

    def _look_for_set(self) -> bool:
        """Whether the finished set is there.

        Raises:
            StoreError: another one is.
        """
        if (content := self.place.content_now("zarr.json")) is None:
            return False
        try:
            key = json.loads(content)["attributes"][ATTRIBUTE]["key"]
        except (ValueError, KeyError, TypeError, RecursionError):
            key = None
        if key != self.spec.key:
            raise StoreError(f"{self.place.url} holds another feature set, of key {key}; remove it, or choose another root")
        self._published = True
        return True

    def missing_units(self) -> list[int]:
        return [] if self._published else [u for u in range(self._layout.n_shards) if u not in self._written]

    def arrays_to_compute(self, unit: int) -> list[str]:
        return [] if self._published or unit in self._written else list(self.layouts)

    def rows_to_compute(self, unit: int, names: Sequence[str]) -> np.ndarray:
        return np.arange(*self._layout.rows(unit))

    def claim(self, unit: int) -> bool:
        if self._published or unit in self._written:
            return False
        if self._leases is None:
            return True
        if not self._leases.is_free(unit):
            return False
        claimed = self._leases.take(unit)
        if claimed and self._has_record(unit):  # its last holder has written it
            self._leases.forget(unit)
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
        """See what others have claimed and written."""
        missing = self.missing_units()
        if self._leases is not None and missing and len(missing) <= FEW:
            for unit in missing:
                if not self._has_record(unit):
                    self._leases.look(unit)
            is_there = self.place.content_now(HEADER) is not None
        else:
            times = self.place.times(WRITING)
            if self._leases is not None:
                self._leases.see(times)
            self._written |= {unit for unit in missing if record_name(unit) in times}
            is_there = HEADER in times
        if not is_there and not self._look_for_set():  # the header is removed first, once the set is whole
            raise StoreError(f"{self.place.url} was removed while it was being written; give the command again")

    def _read_records(self) -> bool:
        """Read records of others, all of which were seen; only who publishes the set needs them. False if some are gone."""
        units = sorted(self._written - self._records.keys())
        contents = list(map_parallel(lambda unit: self.place.content_now(record_name(unit)), units, REQUESTS))
        self._records |= {
            unit: self._parsed(unit, text) for unit, text in zip(units, contents, strict=True) if text is not None
        }
        return len(self._records) == self._layout.n_shards

    def _parsed(self, unit: int, content: bytes) -> dict[str, Any]:
        file = self.place.address(record_name(unit))
        try:
            record = json.loads(content)
            start, stop = self._layout.rows(unit)
            if record["unit"] != unit or not all(start <= note["row"] < stop for note in record["invalid"]):
                raise ValueError(f"unit {record['unit']!r}")
            if {shard["array"]: len(shard["xxh3_128"]) for shard in record["shards"]} != dict.fromkeys(self.layouts, 32):
                raise ValueError("other arrays")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StoreError(
                f"{file} is not a record of this writer ({error!r}); remove it, and give the command again"
            ) from error
        return record

    def write_unit(self, unit: int, rows: Mapping[str, np.ndarray], notes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write one shard of each array, then the record; or compare them with those of whoever was faster.

        Raises:
            StoreError: another process has written other bytes; or the service fails.
        """
        assert set(rows) >= set(self.layouts), sorted(set(self.layouts) - set(rows))
        shards = {name: encoded_shard(layout, unit, rows[name]) for name, layout in self.layouts.items()}
        noted = {note["row"]: note for note in notes}
        record = {
            "unit": unit,
            "shards": [{"array": name, **recorded} for name, (_, recorded) in shards.items()],
            "invalid": [noted[row] for row in sorted(noted)],
        }
        largest = max(layout.nbytes(unit) for layout in self.layouts.values())
        at_once = max(1, min(AT_ONCE, MEMORY // largest))
        list(map_parallel(lambda name: self._send(self.layouts[name], unit, *shards[name]), list(self.layouts), at_once))
        first = self._parsed(unit, self._created(record_name(unit), json.dumps(record).encode()))
        for shard in first["shards"]:
            if shard["xxh3_128"] != shards[shard["array"]][1]["xxh3_128"]:
                raise self._difference(self.layouts[shard["array"]], unit)
        self._records[unit] = first
        self._written.add(unit)
        if self._leases is not None:
            self._leases.forget(unit)

    def _send(self, layout: ArrayLayout, unit: int, parts: Sequence[memoryview | bytes], record: Mapping[str, Any]) -> None:
        """Write a shard, or compare the one that is there, by its size and the digests of all its rows at its end."""
        file, nbytes = layout.file(unit), layout.nbytes(unit)
        size = self.place.size_now(file) if nbytes >= ASKED_NBYTES else None
        if size is None and self.place.create(file, parts, nbytes):
            return
        if (size if size is not None else self.place.size_now(file)) == nbytes:
            tail = self.place.range(file, layout.data_nbytes(unit), nbytes)
            if xxhash.xxh3_128_hexdigest(tail) == record["xxh3_128"]:
                return
        raise self._difference(layout, unit)

    def _difference(self, layout: ArrayLayout, unit: int) -> StoreError:
        file = self.place.address(layout.file(unit))
        return StoreError(
            f"{file} (unit {unit} of {layout.name}) holds other bytes than were computed here: do all tasks run the same "
            "versions on the same kind of GPU? Let one of the kinds write the set; or, if no other task is at work, remove "
            "that file and give the command again"
        )

    def _created(self, name: str, content: bytes) -> bytes:
        """The content of a small file: this one, or that of whoever created it first."""
        while not self.place.create(name, [content], len(content)):
            if (first := self.place.content_now(name)) is not None:
                return first
        return content

    def wait_for_others(self) -> list[int]:
        for nap in _naps():
            if self._leases is None or not self.missing_units():
                break
            self._refresh()
            if free := [unit for unit in self.missing_units() if self._leases.is_free(unit)]:
                return free
            if self.missing_units():
                time.sleep(nap)
        return []

    def finish(self, attributes: Mapping[str, Any]) -> bool:
        """Write every zarr.json, the group's last, unless another process does; then remove what only writers need.

        Raises:
            StoreError: units are missing, and nobody else can be writing them; or what is there differs.
        """
        if not self._published:
            self._refresh()
        if missing := self.missing_units():
            if self._leases is not None:
                return False
            raise StoreError(
                f"{self.place.url}: {len(missing)} of {self._layout.n_shards} units are not written yet, first {missing[0]}"
            )
        publication = self._layout.n_shards  # it is claimed like a unit behind the last
        for nap in _naps():
            if self._published or self._look_for_set():
                break
            if self._leases is None or self._leases.take(publication):
                if not self._look_for_set():  # else its last holder has published it
                    self._publish(attributes)
                break
            time.sleep(nap)
            self._leases.look(publication)
        self.close()
        discard_records(self.place)
        return True

    def _publish(self, attributes: Mapping[str, Any]) -> None:
        if not self._read_records():
            if not self._look_for_set():
                raise StoreError(f"{self.place.url} was removed while it was being written; give the command again")
            return  # another has just published it, and removed them
        written = {unit: {shard["array"]: shard for shard in record["shards"]} for unit, record in self._records.items()}
        notes = {note["row"]: note for record in self._records.values() for note in record["invalid"]}
        files = metadata_of(self.spec, self.layouts, self.constants, written, notes, attributes)
        group = files.pop("zarr.json")
        contents = map_parallel(lambda name: self._created(name, files[name]), list(files), AT_ONCE)
        if wrong := [name for name, content in zip(files, contents, strict=True) if content != files[name]]:
            raise StoreError(f"{self.place.address(wrong[0])} is of other shards than were written; remove it, and try again")
        sizes = self.place.sizes()
        shards = [(layout.file(unit), layout.nbytes(unit)) for layout in self.layouts.values() for unit in self._records]
        if lost := [file for file, nbytes in shards if sizes.get(file) != nbytes]:
            raise StoreError(
                f"{self.place.address(lost[0])} has {sizes.get(lost[0], 'no')} bytes after it was written ({len(lost)} such "
                "files); give the command again"
            )
        if _arrays(self._created("zarr.json", group)) != _arrays(group):
            raise StoreError(f"{self.place.url} was finished with other shards; remove it, and extract again")
        self._published = True


def _naps() -> Iterator[float]:
    """Seconds to wait between looks, ever more."""
    longest = POLL
    while True:
        yield random.uniform(longest / 2, longest)
        longest = min(1.5 * longest, leases.SECONDS / 4)


def discard_records(place: ObjectStore) -> None:
    """Remove what writers keep beside a finished set, the header first: without it, nobody takes units for missing."""
    names = sorted(place.times(WRITING))
    place.remove([name for name in names if name == HEADER])
    place.remove([name for name in names if name != HEADER])


def honours_condition(place: ObjectStore, name: str) -> bool:
    """Whether a service refuses to write a file where there is one. It is asked to write `name` twice; that is removed.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        return not (place.create(name, [b"1"], 1) and place.create(name, [b"2"], 1))
    finally:
        place.remove([name])


def _arrays(content: bytes) -> Any:
    """Digests of the arrays in a group's zarr.json, by name."""
    return json.loads(content)["attributes"][ATTRIBUTE]["arrays"]
