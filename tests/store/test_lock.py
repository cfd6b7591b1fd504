"""One writer at a time, and never none for good: the lock goes with its process."""

import errno
import fcntl
import json
import os
import random
import socket
import time
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from store import StoreError
from store.writing import file_lock, lock
from store.writing.lock import BusyError, Lock, _owner, holder
from tests.forked import CONTEXT, start


def hold(path: Path, held: Event) -> None:
    lock = Lock(path, "features/one")
    held.set()
    time.sleep(60)
    lock.release()


def race(folder: Path, n_held: Any) -> None:
    """Take it again and again; its holder makes a file that no other process may have made."""
    while not (folder / "go").exists():
        pass
    for _ in range(400):
        try:
            lock = Lock(folder / ".staging" / "lock", "one")
        except StoreError:
            continue
        os.close(os.open(folder / "mine", os.O_CREAT | os.O_EXCL))  # fails if somebody else is at this place
        n_held.value += 1
        os.unlink(folder / "mine")
        lock.release()
        with suppress(OSError):
            os.rmdir(folder / ".staging")


def test_a_second_one_is_refused(tmp_path: Path) -> None:
    held = Lock(tmp_path / "lock", "features/one")
    with pytest.raises(StoreError) as caught:
        Lock(tmp_path / "lock", "features/one")
    message = str(caught.value)
    assert f"features/one is being written by process {os.getpid()} on {socket.gethostname()!r}; wait" in message
    held.release()
    assert not (tmp_path / "lock").exists()
    Lock(tmp_path / "lock", "features/one").release()


def test_release_twice(tmp_path: Path) -> None:
    """The second must not take the lock of a process that came in between."""
    first = Lock(tmp_path / "lock", "one")
    first.release()
    second = Lock(tmp_path / "lock", "one")
    first.release()
    with pytest.raises(StoreError, match="is being written"):
        Lock(tmp_path / "lock", "one")
    second.release()


def test_another_process_is_refused_until_this_one_is_killed(tmp_path: Path) -> None:
    """SIGKILL leaves the file, and no lock."""
    other = start(hold, tmp_path / "lock", holds := CONTEXT.Event())
    assert holds.wait(60)
    with pytest.raises(StoreError, match=f"by process {other.pid} on {socket.gethostname()!r}"):
        Lock(tmp_path / "lock", "one")
    other.kill()
    other.join()
    assert (tmp_path / "lock").exists()
    held = Lock(tmp_path / "lock", "one")
    assert json.loads((tmp_path / "lock").read_bytes())["pid"] == os.getpid()
    held.release()


def test_a_lost_lock_is_free(tmp_path: Path) -> None:
    held = Lock(tmp_path / "lock", "one")
    del held
    Lock(tmp_path / "lock", "one").release()


def flock_alone(path: Path, held: Event) -> None:
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held.set()
        time.sleep(60)


def test_programs_that_know_flock_alone_are_kept_out_and_keep_out(tmp_path: Path) -> None:
    other = start(flock_alone, tmp_path / "lock", holds := CONTEXT.Event())
    assert holds.wait(60)
    assert holder(tmp_path / "lock") is not None
    with pytest.raises(BusyError):
        Lock(tmp_path / "lock", "one")
    other.kill()
    other.join()
    held = Lock(tmp_path / "lock", "one")
    with (tmp_path / "lock").open("a+b") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.release()


@pytest.mark.skipif(not file_lock.HAS_OFD, reason="open-file-description locks are Linux's")
class TestLocksThatOtherNodesSee:
    def test_where_flock_holds_on_one_node_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on GPFS: flock says yes to everybody."""
        monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
        held = Lock(tmp_path / "lock", "one")
        with pytest.raises(BusyError):
            Lock(tmp_path / "lock", "one")
        assert holder(tmp_path / "lock") == f"process {os.getpid()} on {socket.gethostname()!r}"
        held.release()
        shared = [Lock(tmp_path / "lock", "one", shared=True) for _ in range(2)]
        with pytest.raises(BusyError):
            Lock(tmp_path / "lock", "one")
        shared[0].release()
        assert (tmp_path / "lock").exists(), "the other one holds it"
        shared[1].release()
        assert not (tmp_path / "lock").exists()

    def test_where_both_kinds_are_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on SMB: whoever holds one kind is refused the other, by its own lock."""

        def refuse(*_: object) -> None:
            raise BlockingIOError(errno.EWOULDBLOCK, "held")

        monkeypatch.setattr(fcntl, "flock", refuse)
        for wait in (False, True):
            held = Lock(tmp_path / "lock", "one", wait=wait)
            with pytest.raises(BusyError):
                Lock(tmp_path / "lock", "one")
            held.release()
        assert list(tmp_path.iterdir()) == []

    def test_looking_takes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        held = Lock(tmp_path / "lock", "one")
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", None)
            assert holder(tmp_path / "lock") is not None
        held.release()


def test_a_place_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"lock cannot be made: .*: Not a directory; another kind of file"):
        Lock(tmp_path / "file/sub/lock", "one")


def test_the_folder_vanishes_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer that ends removes the folder of its lock if nothing else is in it."""
    path, mkdir, left = tmp_path / ".staging" / "lock", Path.mkdir, [3]

    def made_and_removed(self: Path, *arguments: object, **options: object) -> None:
        mkdir(self, *arguments, **options)  # type: ignore[arg-type]
        if left[0]:
            left[0] -= 1
            self.rmdir()

    monkeypatch.setattr(Path, "mkdir", made_and_removed)
    Lock(path, "one").release()
    assert left == [0]


def test_the_file_vanishes_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last owner removed it after we had opened it: what we hold then locks nothing."""
    path, flock, left = tmp_path / "lock", fcntl.flock, [3]

    def locked_too_late(file: object, how: int) -> None:
        if left[0]:
            left[0] -= 1
            path.unlink()
            if left[0] % 2:
                path.touch()
        flock(file, how)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", locked_too_late)
    held = Lock(path, "one")
    assert os.path.samestat(path.stat(), os.fstat(held._file.fileno()))
    held.release()


def test_a_network_that_still_names_a_file_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS and GlusterFS do for a while: the file opens, but can neither be locked nor closed."""
    left, real = [3], lock.take

    class Stale:
        def __init__(self, file: Any):
            self.file = file

        def close(self) -> None:
            self.file.close()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def take(file: Any, shared: bool = False, wait: bool = False) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        real(file, shared, wait)

    def opened(*given: Any, **options: Any) -> Any:
        file = open(*given, **options)  # noqa: SIM115
        return Stale(file) if left[0] > 0 else file

    monkeypatch.setattr(lock, "open", opened, raising=False)
    monkeypatch.setattr(lock, "take", take)
    held = Lock(tmp_path / "lock", "one")
    held.release()
    assert not (tmp_path / "lock").exists()
    assert left[0] < 0


def _contents(n: int) -> list[bytes]:
    generator, sound = random.Random(0), json.dumps({"host": "a", "pid": 7}).encode()
    out = [b"", b"null", b"[]", b"{}", b'{"pid": 1e999, "host": 1}', b'{"pid": NaN, "host": ""}', b"[" * 10**5, b"\xff\0"]
    out += [b'{"host": {"host": []}, "pid": "8"}', b'{"pid": -1, "host": "' + b"x" * 10**5 + b'"}', b"9" * 10**4]
    while len(out) < n:
        content = bytearray(sound)
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(content))
            content[at : at + generator.randint(0, 3)] = generator.randbytes(generator.randint(0, 3)) or b" "
        out.append(bytes(content))
    return out


def test_any_content_of_the_file(tmp_path: Path) -> None:
    """Its content is for people; the message stays short, and the lock is as good as ever."""
    path = tmp_path / "lock"
    for content in _contents(200):
        assert len(_owner(content)) < 1000
        path.write_bytes(content)
        held = Lock(path, "one")
        path.write_bytes(content)
        with pytest.raises(StoreError, match="one is being written by"):
            Lock(path, "one")
        held.release()


def test_two_never_hold_it(tmp_path: Path) -> None:
    counts = [CONTEXT.Value("i") for _ in range(2)]
    racers = [start(race, tmp_path, count) for count in counts]
    (tmp_path / "go").touch()
    for racer, count in zip(racers, counts, strict=True):
        racer.join()
        assert racer.exitcode == 0
        assert count.value > 0
