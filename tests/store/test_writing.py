"""Feature sets that any number of writers write, to a folder or straight to an object store: the same bytes, however often."""

import itertools
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from store import FeatureStore, FeatureWriter, StoreError, verify
from store.format.unfinished import CLAIMS, HEADER, RECORDS, UNNAMED, WRITING, record_name
from store.moving.transfer import upload
from store.places import LocalFolder, Place, SharedPlace, place_at
from store.places.disk import ABANDONED_S
from store.places.object_store import PARTS, ObjectStore, honours_condition
from store.writing import claims
from store.writing import shard as shards
from store.writing import writer as writing
from store.writing.claims import BusyError, Claims, alone, holder
from store.writing.publishing import discard_records, discard_staging
from store.writing.writer import Disagreement
from tests.folders import files
from tests.forked import CONTEXT, start
from tests.s3 import ignoring_conditions, moto, seaweedfs, served
from tests.store.conftest import ATTRIBUTES, flip
from tests.store.tiny import Tiny, notes

TINY = Tiny(n=100, blocks=(3, 5), cls=True)  # four units

LEAN = Tiny(n=50, lean=True)  # two
WIDE = Tiny(n=160, lean=True)  # five
PATCH = "patch/block3/view0"
REQUESTS = ("create", "content_now", "size_now", "sizes", "times", "remove")
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
    return place_at(where)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[Tiny, Any]:
    """The files of the sets as one process writes them to a disk."""
    return {tiny: tiny.expected(tmp_path_factory.mktemp("whole") / "one") for tiny in (TINY, LEAN)}


def begin(where: Where, tiny: Tiny = TINY, **options: Any) -> FeatureWriter:
    return FeatureWriter(where, tiny.spec, tiny.layouts, tiny.constants, **options)


def rows_of(tiny: Tiny, unit: int) -> dict[str, np.ndarray]:
    return {a.name: tiny.values(a.name, *a.rows(unit)).copy() for a in tiny.layouts}


def finish(writer: FeatureWriter, tiny: Tiny = TINY) -> None:
    """All units that it can claim, and the rest."""
    with writer:
        todo = writer.missing_units()
        while todo:
            for unit in todo:
                if writer.claim(unit):
                    tiny.write(writer, unit)
            todo = writer.wait_for_others()
        writer.finish(ATTRIBUTES)


def content(where: Where | Place) -> dict[str, bytes]:
    place = where if isinstance(where, Place) else place_at(where)
    return {name: place.content(name) or b"" for name in place.sizes()}


def check(where: Where, expected: Mapping[str, bytes]) -> None:
    """These are the files of the set, and there is nothing beside it."""
    assert content(where) == expected
    assert isinstance(where, str) or [path.name for path in where.parent.iterdir()] == [where.name]


@pytest.fixture
def _all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """All writers of these tests are in this process; here, none of their claims keeps the others away."""
    monkeypatch.setattr(claims, "has_ended", lambda content: True)


class TestBytes:
    def test_are_those_of_a_local_set_and_of_its_upload(self, server: str, whole: Any) -> None:
        address = f"{server}/{uuid.uuid4().hex}"
        with begin(address, LEAN) as writer:
            for n, unit in enumerate((1, 0)):
                with pytest.raises(StoreError, match=f"{address} is not a feature set.* {n} of 2 units are there"):
                    FeatureStore.open(address)
                assert writer.claim(unit)
                LEAN.write(writer, unit)
            writer.finish(ATTRIBUTES)
        assert content(address) == whole[LEAN]
        FeatureStore.open(address, LEAN.spec.key)

    def test_in_parts(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A large shard is sent in parts, and appears where there is none, whole."""
        monkeypatch.setitem(PARTS, "chunksize", 5 << 20)
        place, parts = ObjectStore(f"{server}/{uuid.uuid4().hex}"), [bytes(6 << 20), b"1" * (5 << 20)]
        assert place.create("large", parts, 11 << 20)
        assert not place.create("large", [bytes(11 << 20)], 11 << 20)
        assert place.content("large") == b"".join(parts)

    def test_only_so_much_is_copied_at_a_time(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for memory, n in ((1 << 30, 8), (2000, 2), (1, 1)):
            monkeypatch.setattr("store.places.object_store.MEMORY", memory)
            assert ObjectStore(address).writers(1000) == n


def interrupt() -> None:
    raise KeyboardInterrupt


def before_call(n: int, happens: Callable[[], object], patch: pytest.MonkeyPatch, owner: Any, *names: str) -> Iterator[int]:
    """Something happens before the call after the first n of these functions, which are counted together."""
    calls = itertools.count()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            if next(calls) == n:
                happens()
            return real(*given, **options)

        return call

    for name in names:
        patch.setattr(owner, name, counted(getattr(owner, name)))
    return calls


class TestInterrupted:
    def test_before_any_request(self, where: Where, place: SharedPlace, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """As by a kill: what is there counts, and the command given again makes the same set, and removes all else."""
        monkeypatch.setattr(type(place), "writers", lambda *_: 1)
        for n in itertools.count():
            path = where.parent / f"{n}/one" if isinstance(where, Path) else f"{where}{n}"
            with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
                before_call(n, interrupt, patch, type(place), *REQUESTS)
                finish(begin(path, LEAN), LEAN)
                break
            if is_finished := "zarr.json" in content(path):
                assert FeatureStore.open(path).spec == LEAN.spec, "readers don't look at what is kept beside it"
            else:
                with pytest.raises(StoreError):
                    FeatureStore.open(path)
            if is_finished and isinstance(path, Path):
                discard_staging(path, LEAN.spec.key)
            else:
                again = begin(path, LEAN)
                n_recorded = sum(name.startswith(RECORDS) for name in again.place.sizes())
                assert len(again.missing_units()) == (0 if is_finished else 2 - n_recorded), "nothing is computed again"
                finish(again, LEAN)
            check(path, whole[LEAN])
        assert n > 30
        check(path, whole[LEAN])

    def test_records_are_listed_before_shards(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """However a folder gives its entries: else a unit that is written meanwhile would seem to lack its shards."""
        walk = os.walk

        def backwards(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
            for found in walk(top):
                found[1].sort(reverse=True)
                yield found

        with begin(tmp_path / "set", LEAN) as writer, monkeypatch.context() as patch:
            LEAN.write(writer, 0)
            patch.setattr(os, "walk", backwards)
            names = list(writer.place.sizes())
        assert names == sorted(names, key=lambda name: not name.startswith(WRITING))

    def test_an_upload_goes_on_from_it(self, address: str, whole: Any, tmp_path: Path) -> None:
        with begin(address, LEAN) as writer:
            LEAN.write(writer, 0)
        upload(FeatureStore.open(LEAN.make(tmp_path / "one")), address)
        assert content(address) == whole[LEAN]


class TestSeveral:
    @pytest.mark.usefixtures("_all_have_ended")
    def test_another_finishes_the_set_at_any_moment(
        self, where: Where, place: SharedPlace, whole: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As by one that was stopped before a request for longer than its claims last, or by one that shares the work."""
        for n in itertools.count():
            path = where.parent / f"{n}/one" if isinstance(where, Path) else f"{where}{n}"
            with monkeypatch.context() as patch, begin(path, LEAN) as other:
                LEAN.write(other, 1)
                requests = before_call(n, partial(finish, other, LEAN), patch, type(place), *REQUESTS)
                finish(begin(path, LEAN), LEAN)
                n_requests = next(requests)
            check(path, whole[LEAN])
            if n_requests < n:
                break
        assert n > 30

    @pytest.mark.parametrize("seconds", [0.3, 1.6])
    def test_a_listing_while_another_publishes_lacks_records(
        self, tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch, seconds: float
    ) -> None:
        """The folder is renamed while it is listed; the other may be so slow that it is taken for killed."""
        with begin(tmp_path / "set", LEAN) as one, begin(tmp_path / "set", LEAN) as other:
            LEAN.write(one, 0)
            LEAN.write(one, 1)
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
            TINY.write(other, 1)
            assert one.claim(2)
            assert not one.claim(1), "it has its record"
            TINY.write(one, 0)
            TINY.write(one, 2)
            with pytest.raises(StoreError, match="1 of 4 units are not written yet, first 3"):
                one.finish(ATTRIBUTES)
            assert other.wait_for_others() == [3]
            assert other.claim(3)
            TINY.write(other, 3)
            other.finish(ATTRIBUTES)
            assert one.wait_for_others() == []
            one.finish(ATTRIBUTES)
        check(where, whole[TINY])

    def test_one_that_waits_is_stopped_or_goes_on_when_another_gives_up(
        self, where: Where, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        naps: list[float] = []
        with begin(where, LEAN) as one, begin(where, LEAN) as other:
            assert one.claim(0)
            assert other.claim(1)
            assert not other.claim(0)
            assert other.wait_for_others(lambda: True) == []
            assert other.missing_units() == [0, 1]
            monkeypatch.setattr(writing.time, "sleep", lambda seconds: (naps.append(seconds), one.close()))
            assert other.wait_for_others() == [0]
        assert len(naps) == 1

    @pytest.mark.parametrize("few", [0, 8])
    def test_units_that_others_wrote_are_seen(self, few: int, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writing, "IN_VAIN", 2)
        monkeypatch.setattr(writing, "FEW", few)
        with begin(where, WIDE) as one, begin(where, WIDE) as other:
            for unit in (1, 3, 4):
                WIDE.write(other, unit)
            assert one.claim(0)
            assert one.missing_units() == [0, 1, 2, 3, 4], "nothing is asked while it meets nobody"
            assert not one.claim(1)
            assert one.missing_units() == [0, 2, 3, 4]
            assert not one.claim(3)
            assert one.missing_units() == [0, 2]

    @pytest.mark.parametrize("second", [{"device": "b", "threads": 2}, {"device": "a"}])
    def test_what_computed_units_is_kept_if_several_kinds_did(self, second: dict[str, Any], where: Where, whole: Any) -> None:
        first = {"device": "a"}
        with begin(where, computed_by=first) as one, begin(where, computed_by=second) as other:
            for unit, writer in enumerate((one, other, one, one)):
                TINY.write(writer, unit)
            one.finish(ATTRIBUTES)
            assert one.computed_by == {0: first, 1: second, 2: first, 3: first}
        noted = FeatureStore.open(where).attributes.get("computed_by")
        assert noted == (None if second == first else [{**first, "units": [0, 2, 3]}, {**second, "units": [1]}])
        shown = {name for name, data in content(where).items() if data != whole[TINY][name]}
        assert shown == (set() if second == first else {"zarr.json"})

    def test_all_tasks_share_the_removal_of_what_they_kept(self) -> None:
        """64 tasks that each removed everything kept a service busy for ten minutes."""
        names, asked = {HEADER, *(f"{RECORDS}/{unit}" for unit in range(3000))}, []

        class Service:
            def times(self, folder: str) -> dict[str, None]:
                time.sleep(0.01)
                return dict.fromkeys(list(names))

            def remove(self, some: list[str]) -> None:
                asked.append(len(some))
                time.sleep(0.01)
                names.difference_update(some)

        with ThreadPoolExecutor(16) as tasks:
            list(tasks.map(discard_records, [Service() for _ in range(16)]))
        assert not names
        assert sum(asked) < 16 * 3000 / 3
        names.add(f"{RECORDS}/1")
        stubborn = type("Stubborn", (Service,), {"remove": lambda self, some: None})
        discard_records(stubborn())  # comes back

    @pytest.mark.usefixtures("_all_have_ended")
    def test_one_that_was_stopped_finds_the_set_finished(
        self, where: Where, whole: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For longer than its claim lasts, in the middle of a unit; other values that it computes are of no use in a folder."""
        with begin(where) as stopped:
            assert stopped.claim(2)
            finish(begin(where))
            stopped.write_unit(2, {name: rows + isinstance(where, Path) for name, rows in rows_of(TINY, 2).items()})
            assert 2 not in stopped.missing_units()
            monkeypatch.setattr(claims, "SECONDS", 0)
            assert not stopped.claim(3), "it has not looked for longer than that"
            assert stopped.wait_for_others() == []
            stopped.finish(ATTRIBUTES)
        check(where, whole[TINY])


class TestOtherBytes:
    """Two writers that compute differently. The first writes a unit's shards; then perhaps its record."""

    @pytest.fixture(params=["shards", "record"])
    def first(self, request: pytest.FixtureRequest, where: Where, monkeypatch: pytest.MonkeyPatch) -> FeatureWriter:
        writer = begin(where)
        if request.param == "record":
            TINY.write(writer, 1)
            return writer
        with monkeypatch.context() as patch:
            patch.setattr(writing, "record_bytes", lambda _: interrupt())
            with pytest.raises(KeyboardInterrupt):
                TINY.write(writer, 1)
        return writer

    @pytest.mark.parametrize("asked", [0, 1 << 30], ids=["asked for", "sent"])
    def test_by_rounding(
        self, first: FeatureWriter, asked: int, where: Where, whole: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first stays, whether it is asked for a file before that is sent or not; and only what differs is compared."""
        monkeypatch.setattr(shards, "ASKED_NBYTES", asked)
        compared: list[tuple[int, set[str]]] = []
        rows = rows_of(TINY, 1)
        rows[PATCH] = np.nextafter(rows[PATCH], np.float16(np.inf))

        def rounding(unit: int, theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]) -> str | None:
            compared.append((unit, set(theirs)))
            assert np.array_equal(theirs[PATCH], rows_of(TINY, 1)[PATCH])
            assert np.array_equal(ours[PATCH], rows[PATCH])
            return None

        with first, begin(where, disagreement=rounding) as other:
            other.write_unit(1, rows, notes(32, 64))
            assert compared == [(1, {PATCH})]
            for unit in (0, 2, 3):
                TINY.write(other, unit)
            other.finish(ATTRIBUTES)
        check(where, whole[TINY])
        assert all(problem is None for _, _, problem in verify(where))

    @pytest.mark.parametrize("disagreement", [None, lambda *_: "0.5 apart"])
    def test_by_more_or_where_nothing_compares_them(
        self, disagreement: Disagreement | None, first: FeatureWriter, where: Where, whole: Any
    ) -> None:
        rows = rows_of(TINY, 1)
        rows["cls/block3/view0"] += 1
        message = r"cls/block3/view0/c/1/0 \(unit 1 of .*holds other values.*" + ("0.5 apart" if disagreement else "")
        with first, begin(where, disagreement=disagreement) as other:
            before = content(first.place)
            with pytest.raises(StoreError, match=message):
                other.write_unit(1, rows, notes(32, 64))
            assert content(first.place) == before
            TINY.write(other, 0)
            assert 1 not in first.missing_units() or 1 in other.missing_units()
            for unit in first.missing_units():
                TINY.write(first, unit)
            first.finish(ATTRIBUTES)
        check(where, whole[TINY])

    @pytest.mark.parametrize("damage", [lambda _: b"short", lambda data: bytes(len(data)), lambda data: data[:-40] + bytes(40)])
    def test_that_are_not_sound(self, damage: Any, where: Where, whole: Any) -> None:
        """As after a disk that has lost some: nothing vouches for them, and they are replaced."""
        with begin(where, disagreement=lambda *_: "wrong") as writer:
            for layout in (TINY.layouts[0], TINY.layouts[2]):
                data = damage(whole[TINY][layout.file(1)])
                writer.place.put(layout.file(1), [data], len(data))
        finish(begin(where), TINY)
        check(where, whole[TINY])

    def test_in_an_array_without_images(self, where: Where, whole: Any) -> None:
        """Nobody computes them, so they never differ by rounding."""
        changed = TINY.constants | {"norm/weight": np.ones(3, np.float32)}
        with begin(where), pytest.raises(StoreError, match=r"\(unit 0 of norm/weight\) holds other values"):
            FeatureWriter(where, TINY.spec, TINY.layouts, changed, disagreement=lambda *_: None)
        finish(begin(where))
        check(where, whole[TINY])

    def test_in_a_finished_set(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """As by tasks that finish at the same moment, from other records."""
        with begin(address, LEAN) as one, begin(address, LEAN) as other:
            for writer in (one, other):
                for unit in (0, 1):
                    LEAN.write(writer, unit)
            other._records[0]["shards"][0]["xxh3_128"] = "0" * 32
            one.finish(ATTRIBUTES)
            monkeypatch.setattr(other, "_look_for_set", lambda: False)
            ObjectStore(address).put(HEADER, [b"{}"], 2)
            with pytest.raises(StoreError, match=r"images/label/zarr\.json is of other shards than were written"):
                other.finish(ATTRIBUTES)


class TestWhatIsThere:
    def test_a_header_of_other_arrays_and_what_is_no_header_or_record(self, where: Where, whole: Any) -> None:
        with begin(where, LEAN) as writer:
            header = writer.place.content_now(HEADER) or b""
            for content, layouts in ((header, LEAN.layouts[:-1]), (b"x", LEAN.layouts)):
                writer.place.put(HEADER, [content], len(content))
                with pytest.raises(StoreError, match="was begun with other shards, or other options"):
                    FeatureWriter(where, LEAN.spec, layouts)
            writer.place.put(HEADER, [header], len(header))
            LEAN.write(writer, 1)
            writer.place.put(record_name(1), [b"x"], 1)
        with pytest.raises(StoreError, match=rf"{record_name(1)} was no record of this writer .*; it is removed"):
            finish(begin(where, LEAN), LEAN)
        again = begin(where, LEAN)
        assert again.missing_units() == [1]
        finish(again, LEAN)
        check(where, whole[LEAN])

    def test_another_set(self, where: Where, whole: Any) -> None:
        finish(begin(where, LEAN), LEAN)
        with pytest.raises(StoreError, match=r"already holds files|holds another feature set"):
            begin(where)
        check(where, whole[LEAN])

    def test_foreign_files(self, address: str) -> None:
        ObjectStore(address).put("images/label/c/9", [b"x"], 1)
        with pytest.raises(StoreError, match=rf"{address} holds 1 files .*, first images/label/c/9"):
            begin(address)

    def test_nothing_any_more(self, where: Where) -> None:
        with begin(where, LEAN) as writer:
            LEAN.write(writer, 1)
            uses: list[Any] = [lambda: writer.finish(ATTRIBUTES)]
            if isinstance(where, Path):
                shutil.rmtree(writer.staging)
                uses += [lambda: LEAN.write(writer, 0), lambda: writer.claim(0)]
            else:
                writer.place.remove(list(content(where)))
            for use in uses:
                with pytest.raises(StoreError, match="was removed while it was being written; give the command again"):
                    use()
        assert content(where) == {}, "nothing is made again"

    def test_missing_units_and_lost_shards(self, where: Where, whole: Any) -> None:
        with begin(where, LEAN) as writer:
            LEAN.write(writer, 1)
            with pytest.raises(StoreError, match="1 of 2 units are not written yet, first 0"):
                writer.finish(ATTRIBUTES)
            LEAN.write(writer, 0)
            damages: list[Callable[[], None]] = [lambda: writer.place.remove(["images/label/c/1"])]
            if isinstance(where, Path):  # of the right size: its last bytes are compared with the record
                damages.append(lambda: flip(writer.staging / "images/label/c/1", -30))
            for damage in damages:
                damage()
                with pytest.raises(StoreError, match=r"images/label/c/1 \(unit 1\) is not .* \(1 such units\)"):
                    writer.finish(ATTRIBUTES)
                with pytest.raises(StoreError):
                    FeatureStore.open(where)
                assert writer.missing_units() == [1]
                LEAN.write(writer, 1)
            writer.finish(ATTRIBUTES)
        check(where, whole[LEAN])

    def test_old_files_without_a_name(self, tmp_path: Path) -> None:
        with begin(tmp_path / "one", LEAN) as writer:
            old, new = (writer.staging / UNNAMED / name for name in ("old", "new"))
            for file in (old, new):
                file.write_text("half")
            os.utime(old, (0, time.time() - ABANDONED_S - 1))
        with begin(tmp_path / "one", LEAN):
            assert (old.exists(), new.exists()) == (False, True)


def test_nonfinite_values_are_counted(written: Path, contents: dict[str, np.ndarray]) -> None:
    for name, array in FeatureStore.open(written).arrays.items():
        counted = [int((~np.isfinite(contents[name][slice(*s["rows"])])).sum()) for s in array.shards if name in contents]
        assert [shard["nonfinite"] for shard in array.shards] == (counted or [0])


def test_a_link_takes_the_place_of_a_file_that_is_damaged(tmp_path: Path, whole: Any) -> None:
    """The set that it is linked from keeps its own."""
    base = FeatureStore.open(Tiny(n=100, cls=True).make(tmp_path / "f"))
    before = files(tmp_path / "f")
    with TINY.begin(tmp_path / "f", base) as writer:
        file = writer.staging / PATCH / "c/0/0/0"
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(len(before[f"{PATCH}/c/0/0/0"])))
        TINY.write(writer, 0)
        assert file.read_bytes() == before[f"{PATCH}/c/0/0/0"]
        assert files(tmp_path / "f") == before
        TINY.finish(writer)
    check(tmp_path / "f", whole[TINY])


def claim_and_wait(path: Path, claimed: Event) -> None:
    with begin(path) as writer:
        assert writer.claim(0)
        claimed.set()
        time.sleep(60)


def test_claims_of_a_killed_process_are_free_at_once(tmp_path: Path, whole: Any) -> None:
    other = start(claim_and_wait, tmp_path / "f", claimed := CONTEXT.Event())
    assert claimed.wait(60)
    with begin(tmp_path / "f") as writer:
        assert not writer.claim(0)
        assert holder(writer.place) == f"process {other.pid} on {os.uname().nodename!r}"
        other.kill()
        other.join()
        assert holder(writer.place) is None
        began = time.monotonic()
        assert writer.claim(0)
        assert time.monotonic() - began < claims.SECONDS / 4
        TINY.finish(writer)
    check(tmp_path / "f", whole[TINY])


class TestServices:
    @pytest.mark.parametrize("server", [moto], indirect=True)
    def test_one_that_ignores_the_condition_or_knows_none(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        address = f"{server}/{uuid.uuid4().hex}"
        assert honours_condition(ObjectStore(address), "probe")
        with ignoring_conditions():
            assert not honours_condition(ObjectStore(address), "probe")
            with pytest.raises(StoreError, match=rf"{address} ignores the condition of a write.*`beyondcls store push`"):
                begin(address)
        assert content(address) == {}, "nothing is left"
        monkeypatch.setattr("store.places.object_store.REFUSED", {})  # a protocol that is installed everywhere
        with pytest.raises(StoreError, match="local:///one is of no service that writes a file only where there is none"):
            begin("local:///one")

    def test_what_a_client_is_given(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Azure's fails with a bytearray."""
        given: list[Any] = []
        monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, value, **options: given.append(value))
        ObjectStore(address).put("large", [bytes(1 << 20), b"1"], (1 << 20) + 1)
        assert given == [bytes(1 << 20) + b"1"]
        assert type(given[0]) is bytes

    def test_a_folder_in_a_listing_is_no_file(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """s3fs gives it if the first file comes between two of its requests."""
        entry = {"type": "directory", "size": 0}
        monkeypatch.setattr(MemoryFileSystem, "find", lambda self, path, **_: {path: entry})
        assert ObjectStore(address).sizes() == {}

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
        place = ObjectStore(address)
        for given, result in ([409, 409], True), ([412], False), ([409, 412], False):
            answers[:] = given
            assert place.create("file", [b"1"], 1) is result
        for given in [409] * 9, [500]:
            answers[:] = given
            with pytest.raises(StoreError, match=f"{address}/file cannot be written: refused; check the network"):
                place.create("file", [b"1"], 1)


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
        with closing(claimed_by(place, **gone)), closing(Claims(place)) as other:
            assert other.take(0) or other.take(0), "the first try finds it"
            assert holder(place) is not None

    @pytest.mark.parametrize(
        "claim",
        [
            *({"host": "x", "pid": NONE}, {"boot": "x", "pid": NONE}, {"processes": "x", "pid": NONE}, {}),
            *(b"[]", b'{"pid": "x", "host": 1}', b"[" * 10_000),
        ],
    )
    def test_of_others_last_for_a_while(self, claim: dict[str, Any] | bytes, place: SharedPlace, clock: list[float]) -> None:
        """Also what is no claim: it counts as that of another machine."""
        if isinstance(claim, bytes):
            place.put(f"{CLAIMS}/0-0", [claim], len(claim))
            assert holder(place) == "another process"
        else:
            claimed_by(place, **claim)
        with closing(Claims(place)) as other:
            for _ in range(3):
                assert not other.take(0)
                clock[0] += 0.3 * claims.SECONDS
            clock[0] += 0.2 * claims.SECONDS
            assert other.take(0)

    def test_who_holds_one(self, place: SharedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
        assert holder(place) is None
        with closing(claimed_by(place, pid=NONE)):
            assert holder(place) is None
            with closing(claimed_by(place, 1)):
                assert holder(place) == f"process {os.getpid()} on {os.uname().nodename!r}"
            with closing(claimed_by(place, 2, host="x", pid=7)):
                assert holder(place) == "process 7 on 'x'"
                monkeypatch.setattr(claims, "RECENT_S", -1.0)
                assert holder(place) is None, "it was not renewed lately"
        assert list(place.sizes()) == []


class TestAlone:
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
    def test_after_one_elsewhere(self, renews: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if not renews:
            monkeypatch.setattr(LocalFolder, "touch", lambda *_: None)
        began, refused = time.monotonic(), pytest.raises(BusyError, match=r"by process .* on 'x'")
        owner = claimed_by(LocalFolder(tmp_path / f"one{claims.ALONE}"), host="x")
        with closing(owner), refused if renews else nullcontext(), alone(tmp_path / "one", "it"):
            assert time.monotonic() - began >= claims.SECONDS
