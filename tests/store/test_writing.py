"""Feature sets that any number of writers write, to a folder or straight to an object store: the same bytes, however often."""

import itertools
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from store import FeatureStore, FeatureWriter, StoreError, verify
from store.format.unfinished import CLAIMS, HEADER, RECORDS, WRITING, record_bytes, record_name
from store.moving.transfer import upload
from store.places import LocalFolder, Place, SharedPlace, place_at
from store.places.object_store import PARTS, ObjectStore, honours_condition
from store.writing import claims
from store.writing import shard as shards
from store.writing import writer as writing
from store.writing.claims import BusyError, Claims, alone, holder
from store.writing.publishing import InFolder, InObjectStore, discard_records, discard_staging
from store.writing.writer import Disagreement
from tests.s3 import ignoring_conditions, moto, seaweedfs, served
from tests.store.conftest import ATTRIBUTES
from tests.store.tiny import Tiny, notes

TINY = Tiny(n=100, blocks=(3, 5), cls=True)  # four units
LEAN = Tiny(n=50, lean=True)  # two
WIDE = Tiny(n=160, lean=True)  # five
PATCH = "patch/block3/view0"
Where = str | Path


@pytest.fixture(scope="module", params=[moto, seaweedfs])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    with served("sets", request.param):
        yield "s3://sets"


@pytest.fixture
def address() -> str:
    return f"memory://{uuid.uuid4().hex}/one"


@pytest.fixture(params=["folder", "object store"])
def where(request: pytest.FixtureRequest, address: str, tmp_path: Path) -> Where:
    return tmp_path / "sets/one" if request.param == "folder" else address


@pytest.fixture
def place(where: Where) -> SharedPlace:
    place = place_at(where)
    assert isinstance(place, SharedPlace)
    return place


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[Tiny, Any]:
    """The files of the sets as one process writes them to a disk."""
    return {tiny: tiny.expected(tmp_path_factory.mktemp("whole") / "one") for tiny in (TINY, LEAN)}


def begin(where: Where, tiny: Tiny = TINY, **options: Any) -> FeatureWriter:
    return FeatureWriter(where, tiny.spec, tiny.layouts, tiny.constants, **options)


def rows_of(tiny: Tiny, unit: int) -> dict[str, np.ndarray]:
    return {a.name: tiny.values(a.name, *a.rows(unit)).copy() for a in tiny.layouts}


def write(writer: FeatureWriter, unit: int, tiny: Tiny = TINY, given: Mapping[str, np.ndarray] | None = None) -> None:
    writer.write_unit(unit, given or rows_of(tiny, unit), notes(*tiny.layouts[0].rows(unit)))


def finish(writer: FeatureWriter, tiny: Tiny = TINY) -> None:
    """All units that it can claim, and the rest."""
    with writer:
        todo = writer.missing_units()
        while todo:
            for unit in todo:
                if writer.claim(unit):
                    write(writer, unit, tiny)
            todo = writer.wait_for_others()
        writer.finish(ATTRIBUTES)


def content(where: Where | Place) -> dict[str, bytes]:
    place = where if isinstance(where, Place) else place_at(where)
    return {name: place.content(name) or b"" for name in place.sizes()}


def is_left(where: Where) -> bool:
    """Whether there is anything beside the set."""
    return isinstance(where, Path) and [p.name for p in where.parent.iterdir()] != [where.name]


def kind_of(where: Where) -> type[SharedPlace]:
    return LocalFolder if isinstance(where, Path) else ObjectStore


def store_at(address: str) -> ObjectStore:
    place = place_at(address)
    assert isinstance(place, ObjectStore)
    return place


@pytest.fixture
def _all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """All writers of these tests are in this process; here, none of their claims keeps the others away."""
    monkeypatch.setattr(claims, "has_ended", lambda content: True)


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
            writer.finish(ATTRIBUTES)
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
        for memory, n in ((1 << 30, 8), (2000, 2), (1, 1)):
            monkeypatch.setattr("store.places.object_store.MEMORY", memory)
            assert store_at(address).writers(1000) == n


class TestInterrupted:
    def test_after_any_file(self, where: Where, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """As by a kill: what is there counts, and the command given again makes the same set."""
        kind = kind_of(where)
        real = kind.create
        for n in itertools.count():
            path = where.with_name(str(n)) if isinstance(where, Path) else f"{where}{n}"
            left = [n]

            def create(self: SharedPlace, *given: Any, left: list[int] = left) -> bool:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return real(self, *given)

            with monkeypatch.context() as patch:
                patch.setattr(kind, "create", create)
                patch.setattr(kind, "writers", lambda *_: 1)
                try:
                    finish(begin(path, LEAN), LEAN)
                    break
                except KeyboardInterrupt:
                    pass
            with pytest.raises(StoreError):
                FeatureStore.open(path)
            again = begin(path, LEAN)
            n_recorded = sum(name.startswith(RECORDS) for name in again.place.sizes())
            assert len(again.missing_units()) == 2 - n_recorded, "what has a record is not computed again"
            finish(again, LEAN)
            assert content(path) == whole[LEAN]
        assert n == len(whole[LEAN]) + 7, "the header, created twice, two records and three claims"
        assert content(path) == whole[LEAN]

    def test_before_its_traces_are_removed(self, where: Where, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("store.writing.publishing.discard_records", lambda place: None)
            finish(begin(where, LEAN), LEAN)
        assert content(where).keys() > whole[LEAN].keys()
        assert FeatureStore.open(where).spec == LEAN.spec, "readers don't look at them"
        if isinstance(where, Path):
            discard_staging(where, LEAN.spec.key)
        else:
            with begin(where, LEAN) as writer:
                assert writer.missing_units() == []
                writer.finish(ATTRIBUTES)
        assert content(where) == whole[LEAN]

    def test_a_task_that_begins_as_another_publishes(self, where: Where, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        kind, looked = InFolder if isinstance(where, Path) else InObjectStore, []
        real = kind.is_published

        def is_published(self: Any) -> bool:
            looked.append(1)
            if len(looked) == 1:
                with monkeypatch.context() as patch:
                    patch.setattr(kind, "is_published", real)
                    finish(begin(where, LEAN), LEAN)
                return False
            return real(self)

        monkeypatch.setattr(kind, "is_published", is_published)
        with begin(where, LEAN) as late:
            assert late.missing_units() == []
            late.finish(ATTRIBUTES)
        assert content(where) == whole[LEAN]

    def test_a_unit_that_is_written_while_another_task_begins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Records are listed before shards, however a folder gives its entries: else it would seem to lack them."""
        real, told = os.scandir, []
        with begin(tmp_path / "set", LEAN) as one:

            class Backwards:
                def __init__(self, path: str) -> None:
                    told.append(Path(path).name)
                    if told[-1] == WRITING:
                        write(one, 0, LEAN)
                    with real(path) as entries:
                        self.entries = iter(sorted(entries, key=lambda entry: entry.name, reverse=True))

                def __enter__(self) -> Self:
                    return self

                def __exit__(self, *_: object) -> None: ...

                def __next__(self) -> os.DirEntry[str]:
                    return next(self.entries)

            write(one, 1, LEAN)
            with monkeypatch.context() as patch:
                patch.setattr(os, "scandir", Backwards)
                sizes = one.place.sizes()
            assert WRITING in told
            for unit in (0, 1):
                is_there = all(layout.file(unit) in sizes for layout in LEAN.layouts)
                assert is_there or record_name(unit) not in sizes

    def test_a_recorded_shard_that_was_removed_is_written_again(self, where: Where, whole: Any) -> None:
        with begin(where, LEAN) as writer:
            write(writer, 0, LEAN)
            writer.place.remove([LEAN.layouts[1].file(0)])
        writer = begin(where, LEAN)
        assert writer.missing_units() == [0, 1]
        finish(writer, LEAN)
        assert content(where) == whole[LEAN]

    def test_an_upload_goes_on_from_it(self, address: str, whole: Any, tmp_path: Path) -> None:
        with begin(address, LEAN) as writer:
            write(writer, 0, LEAN)
        upload(FeatureStore.open(LEAN.make(tmp_path / "one")), address)
        assert content(address) == whole[LEAN]


class TestSeveral:
    def test_all_tasks_share_the_removal_of_what_they_kept(self) -> None:
        """64 tasks that each removed everything kept a service busy for ten minutes."""
        names, asked = {HEADER, *(f"{RECORDS}/{unit}" for unit in range(3000))}, []
        start = threading.Barrier(16)

        class Service:
            def times(self, folder: str) -> dict[str, None]:
                time.sleep(0.01)
                return dict.fromkeys(list(names))

            def remove(self, some: list[str]) -> None:
                asked.append(len(some))
                time.sleep(0.01)
                names.difference_update(some)

        def discard() -> None:
            start.wait()
            discard_records(Service())  # type: ignore[arg-type]

        tasks = [threading.Thread(target=discard) for _ in range(16)]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
        assert not names
        assert sum(asked) < 16 * 3000 / 3
        names.add(f"{RECORDS}/1")
        stubborn = type("Stubborn", (Service,), {"remove": lambda self, some: None})
        discard_records(stubborn())  # comes back

    @pytest.mark.parametrize("seconds", [0.3, 1.6])
    def test_a_listing_while_another_publishes_lacks_records(
        self, tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch, seconds: float
    ) -> None:
        """The folder is renamed while it is listed; the other may be so slow that it is taken for killed."""
        with begin(tmp_path / "set", LEAN) as one, begin(tmp_path / "set", LEAN) as other:
            write(one, 0, LEAN)
            write(one, 1, LEAN)
            finishing, real = threading.Thread(target=lambda: one.finish(ATTRIBUTES)), other.place.times
            slow = iter([seconds])
            monkeypatch.setattr("store.places.disk.remove_partials", lambda _: time.sleep(next(slow, 0)))

            def times(folder: str = "") -> dict[str, Any]:
                if finishing.ident is not None:
                    return real(folder)
                finishing.start()
                while one.staging.exists():
                    time.sleep(0.01)
                return {HEADER: None}

            monkeypatch.setattr(other.place, "times", times)
            other.wait_for_others()
            other.finish(ATTRIBUTES)
            finishing.join()
        assert content(tmp_path / "set") == whole[LEAN]

    def test_each_unit_is_written_by_one(self, where: Where, whole: Any) -> None:
        with begin(where) as one, begin(where) as other:
            assert one.claim(0)
            assert not other.claim(0)
            assert other.claim(1)
            write(other, 1)
            assert one.claim(2)
            assert not one.claim(1), "it has its record"
            write(one, 0)
            write(one, 2)
            with pytest.raises(StoreError, match="1 of 4 units are not written yet, first 3"):
                one.finish(ATTRIBUTES)
            assert other.wait_for_others() == [3]
            assert other.claim(3)
            write(other, 3)
            other.finish(ATTRIBUTES)
            assert one.wait_for_others() == []
            one.finish(ATTRIBUTES)
        assert content(where) == whole[TINY]
        assert not is_left(where)

    def test_one_that_waits_goes_on_when_another_gives_up(self, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
        naps: list[float] = []
        with begin(where, LEAN) as one, begin(where, LEAN) as other:
            assert one.claim(0)
            assert other.claim(1)
            assert not other.claim(0)
            monkeypatch.setattr(writing.time, "sleep", lambda seconds: (naps.append(seconds), one.close()))
            assert other.wait_for_others() == [0]
        assert len(naps) == 1

    def test_one_that_has_ended_holds_nothing(self, where: Where) -> None:
        with begin(where) as one, begin(where) as other:
            for unit, writer in enumerate((one, one, other)):
                assert writer.claim(unit)
            write(one, 0)
            one.close()
            assert {name for name in one.place.sizes() if name.startswith(CLAIMS)} == {f"{CLAIMS}/2-0"}
            assert holder(one.place) is not None
            write(other, 2)
            other.close()
            assert holder(one.place) is None

    def test_one_that_waits_can_be_stopped(self, where: Where) -> None:
        with begin(where, LEAN) as one, begin(where, LEAN) as other:
            assert one.claim(0)
            assert other.claim(1)
            assert other.wait_for_others(lambda: True) == []
            assert other.missing_units() == [0, 1]

    @pytest.mark.usefixtures("_all_have_ended")
    def test_one_that_was_stopped_finds_the_set_finished(
        self, where: Where, whole: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For longer than its claim lasts, in the middle of a unit."""
        with begin(where) as stopped:
            assert stopped.claim(2)
            finish(begin(where))
            write(stopped, 2)
            assert 2 not in stopped.missing_units()
            monkeypatch.setattr(claims, "SECONDS", 0)
            assert not stopped.claim(3), "it has not looked for longer than that"
            assert stopped.wait_for_others() == []
            stopped.finish(ATTRIBUTES)
        assert content(where) == whole[TINY]
        assert not is_left(where)

    def test_one_that_begins_while_the_set_is_finished(self, where: Where, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        real = FeatureWriter._create_header

        def late(self: FeatureWriter) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(FeatureWriter, "_create_header", real)
                finish(begin(where, LEAN), LEAN)
            real(self)

        monkeypatch.setattr(FeatureWriter, "_create_header", late)
        with begin(where, LEAN) as writer:
            assert writer.missing_units() == []
        assert content(where) == whole[LEAN]
        assert not is_left(where)

    @pytest.mark.parametrize("few", [0, 8])
    def test_units_that_others_wrote_are_seen(self, few: int, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writing, "IN_VAIN", 2)
        monkeypatch.setattr(writing, "FEW", few)
        with begin(where, WIDE) as one, begin(where, WIDE) as other:
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
        self, n: int, where: Where, whole: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They finish the set between its first requests; the service has not ignored a condition."""
        kind, left = kind_of(where), [n]
        real = kind.create

        def create(self: SharedPlace, name: str, *given: Any) -> bool:
            created = real(self, name, *given)
            if name == HEADER:
                left[0] -= 1
                if left[0] == 0:
                    finish(begin(where, LEAN), LEAN)
            return created

        monkeypatch.setattr(kind, "create", create)
        with begin(where, LEAN) as writer:
            assert writer.missing_units() == []
        assert content(where) == whole[LEAN]
        assert not is_left(where)

    @pytest.mark.usefixtures("_all_have_ended")
    def test_one_that_publishes_while_another_has(self, where: Where, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """As after a claim that has ended though its owner goes on; or just before it has removed what is beside the set."""
        late: list[FeatureWriter] = []
        real = FeatureWriter._read_records

        def read(self: FeatureWriter) -> None:
            late.append(self)
            if len(late) == 1:
                finish(begin(where, LEAN), LEAN)
            real(self)

        monkeypatch.setattr(FeatureWriter, "_read_records", read)
        with begin(where, LEAN) as other:
            write(other, 1, LEAN)
        with begin(where, LEAN) as one, begin(where, LEAN) as other:
            write(other, 0, LEAN)
            assert one.wait_for_others() == []
            one.finish(ATTRIBUTES)
        assert len(late) == 2
        assert content(where) == whole[LEAN]
        assert not is_left(where)

    @pytest.mark.parametrize("second", [{"device": "b", "threads": 2}, {"device": "a"}])
    def test_what_computed_units_is_kept_if_several_kinds_did(self, second: dict[str, Any], where: Where, whole: Any) -> None:
        first = {"device": "a"}
        with begin(where, computed_by=first) as one, begin(where, computed_by=second) as other:
            for unit, writer in enumerate((one, other, one, one)):
                write(writer, unit)
            one.finish(ATTRIBUTES)
            assert one.computed_by == {0: first, 1: second, 2: first, 3: first}
        noted = FeatureStore.open(where).attributes.get("computed_by")
        assert noted == (None if second == first else [{**first, "units": [0, 2, 3]}, {**second, "units": [1]}])
        shown = {name for name, data in content(where).items() if data != whole[TINY][name]}
        assert shown == (set() if second == first else {"zarr.json"})


class TestOtherBytes:
    """Two writers that compute differently. The first writes a unit's shards; then perhaps its record."""

    @pytest.fixture(params=["shards", "record"])
    def first(self, request: pytest.FixtureRequest, where: Where, monkeypatch: pytest.MonkeyPatch) -> FeatureWriter:
        """It has written its unit 1 as far as that."""
        writer = begin(where)
        if request.param == "record":
            write(writer, 1)
            return writer
        with monkeypatch.context() as patch:
            patch.setattr(writing, "record_bytes", interrupt)
            with pytest.raises(KeyboardInterrupt):
                write(writer, 1)
        return writer

    @pytest.fixture(params=[0, 1 << 30], ids=["asked", "sent"], autouse=True)
    def _asked(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whether it is asked for a file before it is sent."""
        monkeypatch.setattr(shards, "ASKED_NBYTES", request.param)

    def test_by_rounding(self, first: FeatureWriter, where: Where, whole: Any) -> None:
        """The first stays; and only what differs is compared."""
        compared: list[tuple[int, set[str]]] = []
        rows = rows_of(TINY, 1)
        rows[PATCH] = np.nextafter(rows[PATCH], np.float16(np.inf))

        def rounding(unit: int, theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]) -> str | None:
            compared.append((unit, set(theirs)))
            assert np.array_equal(theirs[PATCH], rows_of(TINY, 1)[PATCH])
            assert np.array_equal(ours[PATCH], rows[PATCH])
            return None

        with first, begin(where, disagreement=rounding) as other:
            write(other, 1, given=rows)
            assert compared == [(1, {PATCH})]
            for unit in (0, 2, 3):
                write(other, unit)
            other.finish(ATTRIBUTES)
        assert content(where) == whole[TINY]
        assert all(problem is None for _, _, problem in verify(where))

    @pytest.mark.parametrize("disagreement", [None, lambda *_: "0.5 apart"])
    def test_by_more_or_where_nothing_compares_them(
        self, disagreement: Disagreement | None, first: FeatureWriter, where: Where, whole: Any
    ) -> None:
        rows = rows_of(TINY, 1)
        rows["cls/block3/view0"] += 1
        message = r"cls/block3/view0/c/1/0 \(unit 1 of cls/block3/view0\) holds other values than were computed here"
        with first, begin(where, disagreement=disagreement) as other:
            before = content(first.place)
            with pytest.raises(StoreError, match=message + (": 0.5 apart" if disagreement else "")):
                write(other, 1, given=rows)
            assert content(first.place) == before
            write(other, 0)
            assert 1 not in first.missing_units() or 1 in other.missing_units()
            for unit in first.missing_units():
                write(first, unit)
            first.finish(ATTRIBUTES)
        assert content(where) == whole[TINY]

    @pytest.mark.parametrize("damage", [lambda _: b"short", lambda data: bytes(len(data)), lambda data: data[:-40] + bytes(40)])
    def test_that_are_not_sound(self, damage: Any, where: Where, whole: Any) -> None:
        """As after a disk that has lost some: nothing vouches for them, and they are replaced."""
        with begin(where, disagreement=lambda *_: "wrong") as writer:
            for layout in (TINY.layouts[0], TINY.layouts[2]):
                data = damage(whole[TINY][layout.file(1)])
                writer.place.put(layout.file(1), [data], len(data))
        finish(begin(where), TINY)
        assert content(where) == whole[TINY]

    def test_in_an_array_without_images(self, where: Where, whole: Any) -> None:
        """Nobody computes them, so they never differ by rounding."""
        changed = TINY.constants | {"norm/weight": np.ones(3, np.float32)}
        with begin(where), pytest.raises(StoreError, match=r"\(unit 0 of norm/weight\) holds other values"):
            FeatureWriter(where, TINY.spec, TINY.layouts, changed, disagreement=lambda *_: None)
        finish(begin(where))
        assert content(where) == whole[TINY]

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


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


class TestWhatIsThere:
    @pytest.mark.parametrize("header", [b"x", b"[]", b"{}", None])
    def test_a_header_that_is_none_or_of_other_arrays(self, header: bytes | None, where: Where) -> None:
        with begin(where) as writer:
            if header is not None:
                writer.place.put(HEADER, [header], len(header))
        with pytest.raises(StoreError, match="was begun with other shards, or other options"):
            FeatureWriter(where, TINY.spec, TINY.layouts[: None if header else -1], TINY.constants)

    def test_another_set(self, where: Where, whole: Any) -> None:
        finish(begin(where, LEAN), LEAN)
        with pytest.raises(StoreError, match=r"already holds files|holds another feature set"):
            begin(where)
        assert content(where) == whole[LEAN]

    def test_foreign_files(self, address: str) -> None:
        store_at(address).put("images/label/c/9", [b"x"], 1)
        with pytest.raises(StoreError, match=rf"{address} holds 1 files .*, first images/label/c/9"):
            begin(address)

    @pytest.mark.parametrize(
        "change",
        [
            lambda record: b"x",
            lambda record: record.replace(b'"nonfinite": 0', b'"nonfinite": 1', 1),
            lambda record: record[:-20],
            lambda record: record_bytes([]),
            lambda record: record_bytes({"unit": 1, "shards": [], "invalid": []}),
        ],
    )
    def test_a_record_that_was_changed(self, change: Any, where: Where, whole: Any) -> None:
        with begin(where, LEAN) as writer:
            write(writer, 1, LEAN)
            record = change(before := writer.place.content_now(record_name(1)))
            assert record != before
            writer.place.put(record_name(1), [record], len(record))
        with pytest.raises(StoreError, match=rf"{record_name(1)} was no record of this writer .*; it is removed"):
            finish(begin(where, LEAN), LEAN)
        again = begin(where, LEAN)
        assert again.missing_units() == [1]
        finish(again, LEAN)
        assert content(where) == whole[LEAN]

    def test_nothing_any_more(self, where: Where) -> None:
        with begin(where, LEAN) as writer:
            write(writer, 1, LEAN)
            uses: list[Any] = [lambda: writer.finish(ATTRIBUTES)]
            if isinstance(where, Path):
                shutil.rmtree(writer.staging)
                uses += [lambda: write(writer, 0, LEAN), lambda: writer.claim(0)]
            else:
                writer.place.remove(list(content(where)))
            for use in uses:
                with pytest.raises(StoreError, match="was removed while it was being written; give the command again"):
                    use()
        assert content(where) == {}, "nothing is made again"

    def test_a_record_that_another_has_removed(self, where: Where, whole: Any) -> None:
        """As it found a shard of its unit damaged, between two looks of this one."""
        with begin(where, LEAN) as one, begin(where, LEAN) as other:
            for unit in (0, 1):
                write(other, unit, LEAN)
            assert one.wait_for_others() == []
            one.place.remove([record_name(1)])
            with pytest.raises(StoreError, match="1 of 2 units are not written yet, first 1"):
                one.finish(ATTRIBUTES)
            write(one, 1, LEAN)
            one.finish(ATTRIBUTES)
        assert content(where) == whole[LEAN]

    def test_missing_units_and_lost_shards(self, where: Where, whole: Any) -> None:
        with begin(where, LEAN) as writer:
            write(writer, 1, LEAN)
            with pytest.raises(StoreError, match="1 of 2 units are not written yet, first 0"):
                writer.finish(ATTRIBUTES)
            write(writer, 0, LEAN)
            writer.place.remove([LEAN.layouts[0].file(1)])
            with pytest.raises(StoreError, match=r"images/label/c/1 \(unit 1\) is not what was written there \(1 such units\)"):
                writer.finish(ATTRIBUTES)
            with pytest.raises(StoreError):
                FeatureStore.open(where)
            assert writer.missing_units() == [1]
            write(writer, 1, LEAN)
            writer.finish(ATTRIBUTES)
        assert content(where) == whole[LEAN]


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

    def test_one_that_knows_no_condition(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("store.places.object_store.REFUSED", {})  # a protocol that is installed everywhere
        with pytest.raises(StoreError, match="local:///one is of no service that writes a file only where there is none"):
            begin("local:///one")

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


HERE = {"host": socket.gethostname(), "pid": os.getpid()}
NONE = 1 << 22  # more than a process's number can be


def claimed_by(place: SharedPlace, unit: int = 0, **changes: Any) -> Claims:
    """A claim of a process that differs in this from the one that runs the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "_this_process", lambda real=claims._this_process: {**real(), **changes})
        owner = Claims(place)
        assert owner.take(unit)
    return owner


class TestClaims:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The time, which a test may change."""
        now = [100.0]
        monkeypatch.setattr(claims.time, "monotonic", lambda: now[0])
        return now

    def test_end_when_they_are_not_renewed(self, place: SharedPlace, clock: list[float]) -> None:
        owner, other, third = (Claims(place) for _ in range(3))
        assert owner.take(7)
        for one in (other, third):
            one.see(place.times())
            assert not one.is_free(7)
        clock[0] += claims.SECONDS + 1
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

    def test_are_renewed(self, place: SharedPlace, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claims, "SECONDS", 0.04)
        owner = Claims(place)
        owner.take(7)
        first = place.times()
        for _ in range(10_000):  # that is ten seconds, should it never come
            if (renewed := place.times()) != first:
                break
            time.sleep(0.001)
        monkeypatch.setattr(claims, "SECONDS", 60.0)
        other = Claims(place)
        other.see(first)
        clock[0] += 61
        assert other.is_free(7)
        other.see(renewed)
        assert not other.is_free(7)
        owner.close()
        assert list(place.sizes()) == []

    @pytest.mark.parametrize("gone", [{"pid": NONE}, {"began": "1"}], ids=["no process", "another of its number"])
    def test_of_a_process_here_that_has_ended(self, gone: dict[str, Any], place: SharedPlace, clock: list[float]) -> None:
        owner, other = claimed_by(place, **gone), Claims(place)
        assert other.take(0) or other.take(0), "the first try finds it"
        assert holder(place) is not None
        for one in (owner, other):
            one.close()

    @pytest.mark.parametrize(
        "elsewhere", [{"host": "x", "pid": NONE}, {"boot": "x", "pid": NONE}, {"processes": "x", "pid": NONE}, {}]
    )
    def test_of_others_last_for_a_while(self, elsewhere: dict[str, Any], place: SharedPlace, clock: list[float]) -> None:
        owner, other = claimed_by(place, **elsewhere), Claims(place)
        for _ in range(3):
            assert not other.take(0)
            clock[0] += 0.3 * claims.SECONDS
        clock[0] += 0.2 * claims.SECONDS
        assert other.take(0)
        for one in (owner, other):
            one.close()

    @pytest.mark.parametrize("written", [b"", b"x", b"[]", b'{"pid": "x", "host": 1}', b"[" * 10_000])
    def test_that_are_none(self, written: bytes, place: SharedPlace, clock: list[float]) -> None:
        """They count as those of another machine."""
        place.put(f"{CLAIMS}/0-0", [written], len(written))
        other = Claims(place)
        assert holder(place) == "another process"
        assert not other.take(0)
        clock[0] += claims.SECONDS + 1
        assert other.take(0)
        other.close()

    def test_who_holds_one(self, place: SharedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
        assert holder(place) is None
        gone = claimed_by(place, pid=NONE)
        assert holder(place) is None
        owner = claimed_by(place, 1)
        assert holder(place) == f"process {HERE['pid']} on {HERE['host']!r}"
        owner.close()
        elsewhere = claimed_by(place, 2, host="x", pid=7)
        assert holder(place) == "process 7 on 'x'"
        monkeypatch.setattr(claims, "RECENT_S", -1.0)
        assert holder(place) is None, "it was not renewed lately"
        for one in (gone, elsewhere):
            one.close()
        assert list(place.sizes()) == []


class TestAlone:
    @pytest.fixture
    def beside(self, tmp_path: Path) -> LocalFolder:
        return LocalFolder(tmp_path / f"one{claims.ALONE}")

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claims, "SECONDS", 0.4)
        monkeypatch.setattr(claims, "LOOK_S", 0.02)

    def test_one_at_a_time(self, tmp_path: Path) -> None:
        for _ in range(2):
            with alone(tmp_path / "one", "it"):
                with (
                    pytest.raises(BusyError, match=f"it is being written by process {os.getpid()} on"),
                    alone(tmp_path / "one", "it"),
                ):
                    pass
                with alone(tmp_path / "other", "it"):
                    pass
            assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("renews", [False, True])
    def test_after_one_elsewhere(
        self, renews: bool, beside: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not renews:
            monkeypatch.setattr(LocalFolder, "touch", lambda *_: None)
        owner, began = claimed_by(beside, host="x"), time.monotonic()
        if renews:
            with pytest.raises(BusyError, match=r"by process .* on 'x'"), alone(tmp_path / "one", "it"):
                pass
        else:
            with alone(tmp_path / "one", "it"):
                assert time.monotonic() - began >= claims.SECONDS
        owner.close()
