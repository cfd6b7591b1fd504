"""Writers that share a feature set: claims, a journal for each, one that publishes."""

import os
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from store import FeatureStore, FeatureWriter, StoreError, verify
from store.writing.journal import JOURNAL, journals
from store.writing.lock import BusyError, Lock, holder
from tests.folders import files
from tests.forked import CONTEXT, start
from tests.store.conftest import ATTRIBUTES
from tests.store.tiny import Tiny

TINY = Tiny(n=100)  # 32 + 32 + 32 + 4 rows


def begin(path: Path, shared: bool = True, base: FeatureStore | None = None, tiny: Tiny = TINY) -> FeatureWriter:
    return FeatureWriter(path, tiny.spec, tiny.layouts, tiny.constants, base, replaces=base is not None, shared=shared)


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    TINY.finish(writer := begin(tmp_path / "whole", shared=False))
    writer.close()
    return files(tmp_path / "whole")


def test_units_are_written_by_the_writer_that_claims_them(whole: dict[str, bytes], tmp_path: Path) -> None:
    one, other = begin(tmp_path / "f"), begin(tmp_path / "f")
    assert one.claim(0)
    assert not other.claim(0), "taken"
    assert other.claim(1)
    TINY.write(one, 0)
    TINY.write(other, 1)
    assert not other.claim(0), "written"
    assert not one.claim(1)
    assert one.claim(3)
    assert not other.finish(ATTRIBUTES), "2 and 3 are missing"
    TINY.write(one, 3)
    assert one.claim(2)
    TINY.write(one, 2)
    assert len(journals(one.staging)) == 3, "one with the header, and one of each"
    assert other.finish(ATTRIBUTES), "who finds all written publishes"
    assert files(tmp_path / "f") == whole
    assert one.missing_units() == []
    assert one.finish(ATTRIBUTES), "published already"
    assert not (tmp_path / ".staging").exists()
    assert files(tmp_path / "f") == whole


def test_threads_of_a_writer_read_the_journals_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begin(tmp_path / "f") as writer:
        reading, is_alone, new_records = threading.Lock(), [], writer._journals.new_records

        def read_slowly() -> list[dict[str, Any]]:
            is_alone.append(reading.acquire(timeout=0))
            time.sleep(0.1)
            if is_alone[-1]:
                reading.release()
            return new_records()

        monkeypatch.setattr(writer._journals, "new_records", read_slowly)
        threads = [threading.Thread(target=writer.claim, args=(unit,)) for unit in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert is_alone == [True, True], "else a record whose files are late would be lost"


def test_claims_of_the_dead_do_not_count(whole: dict[str, bytes], tmp_path: Path) -> None:
    dead = begin(tmp_path / "f")
    assert dead.claim(0)
    assert dead.claim(1)
    TINY.write(dead, 1)
    dead._claims[0]._file.close()  # as the system does when a process ends
    dead._lock._file.close()
    assert (tmp_path / ".staging" / f"f-{TINY.spec.key}.claims/0.lock").exists()
    with begin(tmp_path / "f") as writer:
        assert writer.missing_units() == [0, 2, 3]
        for unit in (0, 2, 3):
            assert writer.claim(unit)
            TINY.write(writer, unit)
        assert writer.finish(ATTRIBUTES)
    assert files(tmp_path / "f") == whole
    assert not (tmp_path / ".staging").exists()


def test_one_on_its_own_goes_on_with_what_several_wrote(whole: dict[str, bytes], tmp_path: Path) -> None:
    for unit in (1, 3):
        with begin(tmp_path / "f") as writer:
            assert writer.claim(unit)
            TINY.write(writer, unit)
    with begin(tmp_path / "f", shared=False) as writer:
        assert journals(writer.staging) == [JOURNAL], "joined"
        assert writer.missing_units() == [0, 2]
        TINY.finish(writer)
    assert files(tmp_path / "f") == whole


def test_a_half_line_of_a_dead_writer_harms_nobody(whole: dict[str, bytes], tmp_path: Path) -> None:
    with begin(tmp_path / "f") as writer:
        for unit in (0, 1):
            assert writer.claim(unit)
            TINY.write(writer, unit)
        second_journal = writer.staging / journals(writer.staging)[1]
    second_journal.write_bytes(second_journal.read_bytes()[:-20])
    with begin(tmp_path / "f") as writer:
        assert writer.missing_units() == [1, 2, 3]
        assert second_journal.read_bytes(), "not its own: left as it is, in case somebody still writes it"
        for unit in (1, 2, 3):
            assert writer.claim(unit)
            TINY.write(writer, unit)
        assert writer.finish(ATTRIBUTES)
    assert files(tmp_path / "f") == whole


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_who_does_not_share_is_alone(first: bool, second: bool, tmp_path: Path) -> None:
    with begin(tmp_path / "f", first), pytest.raises(StoreError, match=rf"f is being written by process {os.getpid()} on"):
        begin(tmp_path / "f", second)
    begin(tmp_path / "f", second).close()


def test_an_extension_is_shared_too(tmp_path: Path) -> None:
    more = Tiny(n=100, blocks=(3, 5))
    TINY.make(tmp_path / "f")
    more.make(tmp_path / "whole")
    base = FeatureStore.open(tmp_path / "f")
    one, other = begin(tmp_path / "f", base=base, tiny=more), begin(tmp_path / "f", base=base, tiny=more)
    for writer, unit in ((one, 0), (other, 1), (one, 2), (other, 3)):
        assert writer.claim(unit)
        assert writer.missing_arrays(unit) == ["patch/block5/view0"]
        more.write(writer, unit, poison=True)
    assert one.finish(ATTRIBUTES)
    assert other.finish(ATTRIBUTES)
    assert files(tmp_path / "f") == files(tmp_path / "whole")
    assert all(problem is None for _, _, problem in verify(tmp_path / "f"))


def test_one_that_comes_too_late_finds_nothing_to_do(tmp_path: Path) -> None:
    """It looked for the set before it was published, and began after."""
    TINY.make(tmp_path / "f")
    before = files(tmp_path / "f")
    with begin(tmp_path / "f") as writer:
        assert writer.missing_units() == []
        assert not writer.claim(0)
        assert writer.finish(ATTRIBUTES)
    assert files(tmp_path / "f") == before


class TestLocks:
    def test_shared_by_several(self, tmp_path: Path) -> None:
        one, other = (Lock(tmp_path / "lock", "it", shared=True) for _ in range(2))
        with pytest.raises(BusyError):
            Lock(tmp_path / "lock", "it")
        one.release()
        assert (tmp_path / "lock").exists(), "held by the other"
        with pytest.raises(BusyError):
            Lock(tmp_path / "lock", "it")
        other.release()
        assert not (tmp_path / "lock").exists()

    def test_a_holder_is_seen_though_it_shares(self, tmp_path: Path) -> None:
        lock = Lock(tmp_path / "lock", "it", shared=True)
        assert holder(tmp_path / "lock") is not None
        lock.release()
        assert holder(tmp_path / "lock") is None

    def test_waiting(self, tmp_path: Path) -> None:
        held = Lock(tmp_path / "lock", "it")
        asks, got = CONTEXT.Event(), CONTEXT.Event()
        waiting = start(wait_for, tmp_path / "lock", asks, got)
        assert asks.wait(60)
        assert not got.wait(0.3)
        held.release()
        waiting.join()
        assert got.is_set()


def wait_for(lock: Path, asks: Event, got: Event) -> None:
    asks.set()
    Lock(lock, "it", wait=True)
    got.set()
