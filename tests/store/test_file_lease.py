"""A file system without locks: whoever holds a lease beats, and one that stands still is taken over."""

import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from store import FeatureStore, StoreError
from store.exchange import EXCHANGES
from store.moving.pull import pull
from store.writing import file_lease
from store.writing.lock import BusyError, Lock, holder
from tests.forked import CONTEXT, start
from tests.store.leased import BEAT_S, LEASE_S, without_locks
from tests.store.tiny import Tiny


@pytest.fixture(autouse=True)
def _no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)


def hold(path: Path, shared: bool, held: Event, asked: Event, lost: Event) -> None:
    with pytest.MonkeyPatch.context() as patch:
        without_locks(patch)
        lock = Lock(path, "one", shared)
        held.set()
        asked.wait()
        if lock.is_lost():
            lost.set()
        lock.release()


class Other:
    """Another process that holds the lease."""

    def __init__(self, path: Path, shared: bool = False):
        held, self.asked, self.lost = (CONTEXT.Event() for _ in range(3))
        self.process = start(hold, path, shared, held, self.asked, self.lost)
        assert held.wait(60)

    def end(self) -> bool:
        """Whether it has lost its lease."""
        self.asked.set()
        self.process.join()
        assert self.process.exitcode == 0
        return self.lost.is_set()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "sub" / "lock"
    assert [p.name for p in (tmp_path / "sub").iterdir()] == []


def test_one_holds_it_while_it_beats(path: Path) -> None:
    other = Other(path)
    for _ in range(3):  # for longer than a lease lasts without a beat
        with pytest.raises(BusyError, match=rf"one is being written by process {other.process.pid} on"):
            Lock(path, "one")
        with pytest.raises(BusyError):
            Lock(path, "one", shared=True)
        time.sleep(LEASE_S / 2)
    assert f"process {other.process.pid} on" in str(holder(path))
    assert not other.end()
    assert holder(path) is None
    Lock(path, "one").release()


def test_several_share_it(path: Path) -> None:
    other = Other(path, shared=True)
    shared = Lock(path, "one", shared=True)
    with pytest.raises(BusyError):
        Lock(path, "one")
    other.end()
    with pytest.raises(BusyError):
        Lock(path, "one")
    shared.release()
    held = Lock(path, "one", wait=True)
    with pytest.raises(BusyError):
        Lock(path, "one", shared=True)
    held.release()


@pytest.mark.parametrize("shared", [False, True])
def test_that_of_a_killed_process_is_taken_over(path: Path, shared: bool) -> None:
    other = Other(path, shared)
    other.process.kill()
    other.process.join()
    assert holder(path) is None
    Lock(path, "one").release()


def test_one_that_was_stopped_sees_that_it_lost_it(path: Path) -> None:
    other = Other(path)
    assert other.process.pid is not None
    os.kill(other.process.pid, signal.SIGSTOP)
    held = Lock(path, "one", wait=True)
    os.kill(other.process.pid, signal.SIGCONT)
    assert other.end()
    held.check()
    assert path.exists(), "it removes nothing of the new holder"
    held.release()


def test_a_lost_lease_is_reported(path: Path) -> None:
    held = Lock(path, "features/one")
    (file,) = path.parent.glob("lock.lease")
    file.unlink()
    with pytest.raises(StoreError, match=r"still for longer than 0\.5 s, and another has taken over features/one; .*goes on"):
        held.check()
    held.release()


def test_nothing_is_published_with_a_lost_lease(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a writer on its own, a fetch, or an export: another is at work there."""
    path.parent.mkdir()
    source = Tiny().make(tmp_path / "source")

    def look_on(self: Lock) -> bool:
        return True

    with Tiny().begin(tmp_path / "written") as writer, Tiny().begin(tmp_path / "begun") as begun:
        for unit in writer.missing_units():
            Tiny().write(writer, unit)
        monkeypatch.setattr(Lock, "is_lost", look_on)
        for work in (
            lambda: Tiny().write(begun, 0),
            lambda: Tiny().finish(writer),
            lambda: pull(str(source), tmp_path / "fetched"),
            lambda: EXCHANGES["npy"].export(FeatureStore.open(source), tmp_path / "exported", ["images/label"]),
        ):
            with pytest.raises(StoreError, match="another has taken over"):
                work()
    assert not [name for name in ("written", "fetched", "exported") if (tmp_path / name).exists()]


def test_clocks_of_machines_do_not_matter(path: Path) -> None:
    """A lease from the past or the future counts as long as it changes."""
    held = Lock(path, "one")
    (file,) = path.parent.glob("lock.lease")
    for when in (0, 2**31):
        os.utime(file, (when, when))
        with pytest.raises(BusyError):
            Lock(path, "one")
    held.release()


def test_the_watcher_was_stopped_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks, for long: what it saw before does not count."""
    held, real = Lock(path, "one"), time.monotonic
    looks = iter(range(10**6))

    def monotonic() -> float:
        if (look := next(looks)) == 2:
            time.sleep(5 * BEAT_S)
        return real() + (look >= 2) * LEASE_S

    monkeypatch.setattr(file_lease.time, "monotonic", monotonic)
    assert file_lease._still_content(path.with_name("lock.lease")) is None, "it beats"
    held.release()


def test_a_lease_that_was_renewed_while_it_was_taken_is_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, still = Lock(path, "one"), file_lease._still_content
    taken = iter([None])

    def once(file: Path) -> bytes | None:
        for _ in taken:
            return b"long ago"
        return still(file)

    monkeypatch.setattr(file_lease, "_still_content", once)
    with pytest.raises(BusyError):
        Lock(path, "one")
    held.check()
    held.release()


def test_a_fork_does_not_hold_it(path: Path) -> None:
    held = Lock(path, "one")
    if not (child := os.fork()):
        held.release()
        os._exit(0)
    os.waitpid(child, 0)
    held.check()
    held.release()
