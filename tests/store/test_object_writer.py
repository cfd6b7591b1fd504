"""Feature sets that are written straight to an object store: the bytes of a local set, whoever writes them, and how often."""

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from store import FeatureStore, StoreError
from store.format.unfinished import HEADER, record_name
from store.moving.upload import upload
from store.places import place_at
from store.places.object_store import PARTS, ObjectStore
from store.writing import leases, object_writer
from store.writing.leases import Leases
from store.writing.object_writer import ObjectWriter, honours_condition
from tests.s3 import ignoring_conditions, moto, seaweedfs, served
from tests.store.conftest import ATTRIBUTES
from tests.store.tiny import SHARD, Tiny, notes

TINY = Tiny(n=100, blocks=(3, 5), cls=True)  # four units
LEAN = Tiny(n=50, lean=True)  # two
WIDE = Tiny(n=160, lean=True)  # five


@pytest.fixture(scope="module", params=[moto, seaweedfs])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    with served("sets", request.param):
        yield "s3://sets"


@pytest.fixture
def address() -> str:
    return f"memory://{uuid.uuid4().hex}/one"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[Tiny, Any]:
    """The files of both sets as they are written to a disk."""
    return {tiny: tiny.expected(tmp_path_factory.mktemp("whole") / "one") for tiny in (TINY, LEAN)}


def begin(address: str, tiny: Tiny = TINY, **options: Any) -> ObjectWriter:
    return ObjectWriter(address, tiny.spec, tiny.layouts, tiny.constants, **options)


def rows_of(tiny: Tiny, unit: int) -> dict[str, np.ndarray]:
    return {a.name: tiny.values(a.name, *a.rows(unit)) for a in tiny.layouts}


def write(writer: ObjectWriter, unit: int, tiny: Tiny = TINY) -> None:
    writer.write_unit(unit, rows_of(tiny, unit), notes(*tiny.layouts[0].rows(unit)))


def finish(writer: ObjectWriter, tiny: Tiny = TINY) -> bool:
    """All units that it can claim, and the rest."""
    with writer:
        for unit in writer.missing_units():
            if writer.claim(unit):
                write(writer, unit, tiny)
        return writer.finish(ATTRIBUTES)


def content(address: str) -> dict[str, bytes]:
    place = place_at(address)
    return {name: place.content(name) or b"" for name in place.sizes()}


def store_at(address: str) -> ObjectStore:
    place = place_at(address)
    assert isinstance(place, ObjectStore)
    return place


class TestBytes:
    def test_are_those_of_a_local_set_and_of_its_upload(self, server: str, whole: Any) -> None:
        address = f"{server}/{uuid.uuid4().hex}"
        with begin(address) as writer:
            for n, unit in enumerate((2, 0, 3, 1)):
                message = rf"{address} is not a feature set.* it is being written, {n} of 4 units are there: wait .* if none is"
                with pytest.raises(StoreError, match=message):
                    FeatureStore.open(address)
                assert writer.claim(unit)
                write(writer, unit)
            assert writer.finish(ATTRIBUTES)
        assert content(address) == whole[TINY]
        FeatureStore.open(address, TINY.spec.key)

    def test_in_parts(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A large shard is sent in parts, and appears where there is none, whole."""
        monkeypatch.setitem(PARTS, "chunksize", 5 << 20)
        place, parts = store_at(f"{server}/{uuid.uuid4().hex}"), [bytes(6 << 20), b"1" * (5 << 20)]
        assert place.create("large", parts, 11 << 20)
        assert not place.create("large", [bytes(11 << 20)], 11 << 20)
        assert place.content("large") == b"".join(parts)

    def test_only_so_much_is_copied_at_a_time(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        at_once: list[int] = []
        real = object_writer.map_parallel
        monkeypatch.setattr(object_writer, "map_parallel", lambda f, i, n: (at_once.append(n), real(f, i, n))[1])
        with begin(address) as writer:
            for memory in (1 << 30, 2000, 1):
                monkeypatch.setattr(object_writer, "MEMORY", memory)
                write(writer, writer.missing_units()[0])
        largest = max(layout.nbytes(0) for layout in TINY.layouts)
        assert at_once[-3:] == [8, 2000 // largest, 1]


class TestInterrupted:
    def test_after_any_file(self, address: str, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """As by a kill: what is there counts, and the command given again makes the same set."""
        real, n_files = ObjectStore.create, len(whole[LEAN]) + 4
        for n in range(n_files):
            place, left = f"{address}{n}", [n]

            def create(self: ObjectStore, *given: Any, left: list[int] = left) -> bool:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return real(self, *given)

            with monkeypatch.context() as patch:
                patch.setattr(ObjectStore, "create", create)
                patch.setattr(object_writer, "AT_ONCE", 1)
                with pytest.raises(KeyboardInterrupt):
                    finish(begin(place, LEAN), LEAN)
            with pytest.raises(StoreError, match=r"it has no zarr\.json"):
                FeatureStore.open(place)
            again = begin(place, LEAN)
            n_recorded = sum(name.startswith(".writing/units/") for name in content(place))
            assert len(again.missing_units()) == 2 - n_recorded, "what has a record is not computed again"
            assert finish(again, LEAN)
            assert content(place) == whole[LEAN]
        assert n == n_files - 1

    def test_before_its_traces_are_removed(self, address: str, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(object_writer, "discard_records", lambda place: None)
            finish(begin(address, LEAN), LEAN)
        assert content(address).keys() > whole[LEAN].keys()
        assert FeatureStore.open(address).spec == LEAN.spec, "readers don't look at them"
        with begin(address, LEAN) as writer:
            assert writer.missing_units() == []
            assert writer.finish(ATTRIBUTES)
        assert content(address) == whole[LEAN]

    def test_a_recorded_shard_that_was_removed_is_written_again(self, address: str, whole: Any) -> None:
        with begin(address, LEAN) as writer:
            write(writer, 0, LEAN)
        store_at(address).remove([LEAN.layouts[1].file(0)])
        writer = begin(address, LEAN)
        assert writer.missing_units() == [0, 1]
        assert finish(writer, LEAN)
        assert content(address) == whole[LEAN]

    def test_an_upload_goes_on_from_it(self, address: str, whole: Any, tmp_path: Path) -> None:
        with begin(address, LEAN) as writer:
            write(writer, 0, LEAN)
        upload(FeatureStore.open(LEAN.make(tmp_path / "one")), address)
        assert content(address) == whole[LEAN]


class TestSeveral:
    def test_each_unit_is_written_by_one(self, address: str, whole: Any) -> None:
        with begin(address, shared=True) as one, begin(address, shared=True) as other:
            assert one.claim(0)
            assert not other.claim(0)
            assert other.claim(1)
            write(other, 1)
            assert one.claim(2)
            assert not one.claim(1), "it has its record"
            write(one, 0)
            write(one, 2)
            assert not one.finish(ATTRIBUTES), "a unit is missing"
            assert other.wait_for_others() == [3]
            assert other.claim(3)
            write(other, 3)
            assert other.finish(ATTRIBUTES)
            assert one.wait_for_others() == []
            assert one.finish(ATTRIBUTES)
        assert content(address) == whole[TINY]

    def test_one_that_waits_goes_on_when_another_gives_up(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        naps: list[float] = []
        with begin(address, LEAN, shared=True) as one, begin(address, LEAN, shared=True) as other:
            assert one.claim(0)
            assert other.claim(1)
            assert not other.claim(0)
            monkeypatch.setattr(object_writer.time, "sleep", lambda seconds: (naps.append(seconds), one.close()))
            assert other.wait_for_others() == [0]
        assert len(naps) == 1

    def test_one_that_was_stopped_finds_the_set_finished(
        self, address: str, whole: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For longer than its claim lasts, in the middle of a unit."""
        with begin(address, shared=True) as stopped:
            assert stopped.claim(2)
            assert finish(begin(address))
            write(stopped, 2)
            assert record_name(2) in content(address), "it cannot know"
            assert stopped.missing_units() == [0, 1, 3]
            monkeypatch.setattr(leases, "SECONDS", 0)
            assert not stopped.claim(3), "it has not looked for longer than that"
            assert stopped.wait_for_others() == []
            assert stopped.finish(ATTRIBUTES)
        assert content(address) == whole[TINY]

    def test_one_that_begins_while_the_set_is_finished(self, address: str, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        real = ObjectWriter._create_header

        def late(self: ObjectWriter, header: bytes) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(ObjectWriter, "_create_header", real)
                finish(begin(address, LEAN), LEAN)
            real(self, header)

        monkeypatch.setattr(ObjectWriter, "_create_header", late)
        with begin(address, LEAN) as writer:
            assert writer.missing_units() == []
        assert content(address) == whole[LEAN]

    def test_units_that_others_wrote_are_seen(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(object_writer, "IN_VAIN", 2)
        for few in (0, 8):
            monkeypatch.setattr(object_writer, "FEW", few)
            with begin(f"{address}{few}", WIDE, shared=True) as one, begin(f"{address}{few}", WIDE) as other:
                for unit in (1, 3, 4):
                    write(other, unit, WIDE)
                assert one.claim(0)
                assert one.missing_units() == [0, 1, 2, 3, 4], "nothing is asked while it meets nobody"
                assert not one.claim(1)
                assert one.missing_units() == [0, 2, 3, 4]
                assert not one.claim(3)
                assert one.missing_units() == [0, 2]

    @pytest.mark.parametrize("n", [1, 2])
    def test_one_whose_header_is_removed_by_others(
        self, n: int, address: str, whole: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They finish the set between its first requests; the service has not ignored a condition."""
        real, left = ObjectStore.create, [n]

        def create(self: ObjectStore, name: str, *given: Any) -> bool:
            created = real(self, name, *given)
            if name == HEADER:
                left[0] -= 1
                if left[0] == 0:
                    finish(begin(address, LEAN), LEAN)
            return created

        monkeypatch.setattr(ObjectStore, "create", create)
        with begin(address, LEAN) as writer:
            assert writer.missing_units() == []
        assert content(address) == whole[LEAN]

    def test_one_that_publishes_while_another_has(self, address: str, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """As after a claim that has ended though its owner goes on; or just before it has removed what is beside the set."""
        late: list[ObjectWriter] = []
        real = ObjectWriter._read_records

        def read(self: ObjectWriter) -> bool:
            late.append(self)
            if len(late) == 1:
                assert finish(begin(address, LEAN), LEAN)
            return real(self)

        monkeypatch.setattr(ObjectWriter, "_read_records", read)
        with begin(address, LEAN) as one:
            write(one, 1, LEAN)
        with begin(address, LEAN, shared=True) as one:
            write(begin(address, LEAN), 0, LEAN)
            assert one.wait_for_others() == []
            assert one.finish(ATTRIBUTES)
        assert len(late) == 2
        assert content(address) == whole[LEAN]


class TestOtherBytes:
    """Two tasks that compute differently."""

    @pytest.mark.parametrize("asked", [0, 1 << 30])
    def test_in_a_shard_without_a_record(self, asked: int, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(object_writer, "ASKED_NBYTES", asked)
        with begin(address) as writer:
            shard = TINY.layouts[2]
            store_at(address).put(shard.file(1), [bytes(shard.nbytes(1))], shard.nbytes(1))
            message = rf"{shard.file(1)} \(unit 1 of {shard.name}\) holds other bytes than were computed here.*remove that file"
            with pytest.raises(StoreError, match=message):
                write(writer, 1)
            write(writer, 0)
            assert writer.missing_units() == [1, 2, 3]

    def test_of_another_size(self, address: str) -> None:
        with begin(address) as writer:
            store_at(address).put(TINY.layouts[0].file(1), [b"short"], 5)
            with pytest.raises(StoreError, match=r"\(unit 1 of images/label\) holds other bytes"):
                write(writer, 1)

    def test_in_a_unit_with_a_record(self, address: str) -> None:
        with begin(address) as one, begin(address) as other:
            write(one, 1)
            rows = rows_of(TINY, 1)
            rows["cls/block3/view0"] = rows["cls/block3/view0"] + 1
            before = content(address)
            with pytest.raises(StoreError, match=r"cls/block3/view0/c/1/0 \(unit 1 of cls/block3/view0\) holds other bytes"):
                other.write_unit(1, rows, notes(SHARD, 2 * SHARD))
            assert content(address) == before

    def test_in_a_finished_set(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """As by tasks that finish at the same moment, from other records."""
        with begin(address, LEAN) as one, begin(address, LEAN) as other:
            for writer in (one, other):
                for unit in (0, 1):
                    write(writer, unit, LEAN)
            other._records[0]["shards"][0]["xxh3_128"] = "0" * 32
            one.finish(ATTRIBUTES)
            monkeypatch.setattr(other, "_look_for_set", lambda: False)
            store_at(address).put(HEADER, [b"{}"], 2)
            with pytest.raises(StoreError, match=r"images/label/zarr\.json is of other shards than were written"):
                other.finish(ATTRIBUTES)


class TestWhatIsThere:
    def test_another_layout(self, address: str) -> None:
        begin(address)
        with pytest.raises(
            StoreError, match=rf"{address} was begun with other shards, or other options; give the command that"
        ):
            ObjectWriter(address, TINY.spec, TINY.layouts[:-1], TINY.constants)

    def test_another_set(self, address: str) -> None:
        finish(begin(address, LEAN), LEAN)
        with pytest.raises(
            StoreError, match=rf"{address} holds another feature set, of key {LEAN.spec.key}; remove it, or choose"
        ):
            begin(address)

    def test_foreign_files(self, address: str) -> None:
        store_at(address).put("images/label/c/9", [b"x"], 1)
        with pytest.raises(
            StoreError, match=rf"{address} holds 1 files that do not belong to this set, first images/label/c/9"
        ):
            begin(address)

    @pytest.mark.parametrize("record", [b"x", b"[]", json.dumps({"unit": 1, "shards": [], "invalid": []}).encode()])
    def test_a_record_that_is_none(self, record: bytes, address: str) -> None:
        with begin(address, LEAN) as writer:
            write(writer, 1, LEAN)
            store_at(address).put(record_name(1), [record], len(record))
        with pytest.raises(StoreError, match=rf"{record_name(1)} is not a record of this writer .*; remove it, and give the"):
            finish(begin(address, LEAN), LEAN)

    def test_nothing_any_more(self, address: str) -> None:
        with begin(address, LEAN) as writer:
            write(writer, 1, LEAN)
            store_at(address).remove(list(content(address)))
            with pytest.raises(StoreError, match=f"{address} was removed while it was being written; give the command again"):
                writer.finish(ATTRIBUTES)

    def test_missing_units_and_lost_shards(self, address: str) -> None:
        with begin(address, LEAN) as writer:
            write(writer, 1, LEAN)
            with pytest.raises(StoreError, match="1 of 2 units are not written yet, first 0"):
                writer.finish(ATTRIBUTES)
            write(writer, 0, LEAN)
            store_at(address).remove([LEAN.layouts[0].file(1)])
            with pytest.raises(StoreError, match=r"images/label/c/1 has no bytes after it was written \(1 such files\); give"):
                writer.finish(ATTRIBUTES)
        with pytest.raises(StoreError, match=r"it has no zarr\.json"):
            FeatureStore.open(address)


class TestServices:
    @pytest.mark.parametrize("server", [moto], indirect=True)
    def test_one_that_ignores_the_condition(self, server: str) -> None:
        address = f"{server}/{uuid.uuid4().hex}"
        assert honours_condition(store_at(address), "probe")
        with ignoring_conditions():
            assert not honours_condition(store_at(address), "probe")
            with pytest.raises(StoreError, match=rf"{address} ignores the condition of a write.*`beyondcls store push`"):
                begin(address)
        assert content(address) == {}, "nothing is left"

    @pytest.mark.parametrize("url", ["local:///one", "/one"])
    def test_one_that_knows_no_condition(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("store.places.object_store.REFUSED", {})  # a protocol that is installed everywhere
        with pytest.raises(StoreError, match=f"{url} is of no service that writes a file only where there is none; give --out"):
            begin(url)

    def test_what_a_client_is_given(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Azure's fails with a bytearray."""
        given: list[Any] = []
        monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, value, **options: given.append(value))
        store_at(address).put("large", [bytes(1 << 20), b"1"], (1 << 20) + 1)
        assert given == [bytes(1 << 20) + b"1"]
        assert type(given[0]) is bytes

    def test_a_folder_in_a_listing_is_no_file(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """s3fs gives it if the first file comes between two of its requests."""
        entry = {"type": "directory", "size": 0}
        monkeypatch.setattr(MemoryFileSystem, "find", lambda self, path, **_: {path: entry})
        assert store_at(address).sizes() == {}

    def test_answers(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A conflict is tried again; a file that is there is no failure, in whatever form a service says so."""

        class Answer(Exception):
            def __init__(self, status: int):
                self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}

        answers: list[int] = []

        def pipe_file(self: Any, path: str, value: bytes, **options: Any) -> None:
            if answers:
                error = OSError("refused")
                error.__cause__ = Answer(answers.pop(0))
                raise error

        monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
        monkeypatch.setattr("store.places.object_store.time.sleep", lambda _: None)
        place = store_at(address)
        for given, result in ([409, 409], True), ([412], False), ([409, 412], False):
            answers[:] = given
            assert place.create("file", [b"1"], 1) is result
        for given in [409] * 9, [500]:
            answers[:] = given
            with pytest.raises(StoreError, match=f"{address}/file cannot be written: refused; check the network"):
                place.create("file", [b"1"], 1)


class TestLeases:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The time, which a test may change."""
        now = [100.0]
        monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
        return now

    def test_end_when_they_are_not_renewed(self, address: str, clock: list[float]) -> None:
        place = store_at(address)
        owner, other, third = (Leases(place) for _ in range(3))
        assert owner.take(7)
        for one in (other, third):
            one.see(place.times())
            assert not one.is_free(7)
        clock[0] += leases.SECONDS + 1
        for one in (other, third):
            one.see(place.times())
            assert one.is_free(7)
        assert other.take(7)
        assert not third.take(7), "one of them"
        third.see(place.times())
        assert not third.is_free(7), "it counts from now on"
        assert owner.is_free(8)
        assert not owner.is_free(7)
        for one in (owner, other):
            one.close()
        third.see(place.times())
        assert third.is_free(7)
        assert list(place.sizes()) == []

    def test_are_renewed(self, address: str, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(leases, "SECONDS", 0.04)
        place = store_at(address)
        owner = Leases(place)
        owner.take(7)
        first = place.times()
        for _ in range(10_000):  # that is ten seconds, should it never come
            if (renewed := place.times()) != first:
                break
            time.sleep(0.001)
        monkeypatch.setattr(leases, "SECONDS", 60.0)
        other = Leases(place)
        other.see(first)
        clock[0] += 61
        assert other.is_free(7)
        other.see(renewed)
        assert not other.is_free(7)
        owner.close()
        assert list(place.sizes()) == []
