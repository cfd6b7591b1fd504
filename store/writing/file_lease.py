"""Turns of processes on a file system without locks: whoever holds one shows that it lives, as long as it does.

A lease is a file beside the one to be locked. Its holder changes it every `BEAT_S`; one that has stood still for `LEASE_S` may
be taken over. The clock is that of the process that watches: clocks of two machines are never compared. A process that was
stopped for longer loses its lease and can only see so afterwards (`is_lost`), so what it guards must bear two holders.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

BEAT_S = 2.0
LEASE_S = 60.0
_CONTENT_NBYTES = 512  # all of them are written in one call


class Lease:
    """Held from construction until `release`, or until this object or its process is gone, and then for another `LEASE_S`.

    Args:
        path: the file that it stands for.
        shared: others may hold it too, if they share it.
        wait: wait until it is free.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, shared: bool = False, wait: bool = False):
        self._path = path
        while True:
            try:
                self._beating = _take(path, shared)
                break
            except BlockingIOError:
                if not wait:
                    raise
        self._finalizer = weakref.finalize(self, self._beating.remove)

    def is_lost(self) -> bool:
        """Whether another process has taken it over."""
        return not self._beating.is_there()

    def release(self) -> bool:
        """Give it back, if it is not lost; whether nobody has one for this file now."""
        self._finalizer()
        return not any(_leases(self._path))


class _Beating:
    """The file of a lease that this process holds.

    Raises:
        FileExistsError: somebody holds it, or was killed.
        OSError: it cannot be made.
    """

    def __init__(self, file: Path, token: str):
        self._file, self._token, self._beats, self._pid = file, token, 0, os.getpid()
        self._mutex = threading.Lock()  # a descriptor that is closed may soon be that of another file
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            self.beat()
        except OSError:
            self.remove()
            raise
        _HEART.keep(self)

    def beat(self) -> None:
        """Show that the holder lives."""
        with self._mutex:
            if self._descriptor >= 0:
                self._beats += 1
                record = {"host": socket.gethostname(), "pid": self._pid, "token": self._token, "beat": self._beats}
                os.pwrite(self._descriptor, json.dumps(record).ljust(_CONTENT_NBYTES).encode(), 0)
                os.fsync(self._descriptor)

    def is_there(self) -> bool:
        """Whether it is still the file of that name."""
        try:
            return self._token.encode() in self._file.read_bytes()
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Give it back, if nobody took it over."""
        if self._pid == os.getpid():  # a fork inherits it, and does not hold it
            with self._mutex:
                os.close(self._descriptor)
                self._descriptor = -1
            _HEART.forget(self)
            if self.is_there():
                self._file.unlink(missing_ok=True)


class _Heart:
    """A thread that lets all leases of this process beat."""

    def __init__(self) -> None:
        self._beating: set[_Beating] = set()
        self._is_needed = threading.Event()
        self._pid = 0

    def keep(self, lease: _Beating) -> None:
        if self._pid != os.getpid():  # the first, or in a fork, which has no threads
            self._pid, self._beating, self._is_needed = os.getpid(), set(), threading.Event()
            threading.Thread(target=self._run, name="beyondcls-leases", daemon=True).start()
        self._beating.add(lease)
        self._is_needed.set()

    def forget(self, lease: _Beating) -> None:
        self._beating.discard(lease)

    def _run(self) -> None:
        while True:
            self._is_needed.wait()
            self._is_needed.clear()
            while beating := self._beating.copy():
                for lease in beating:
                    with contextlib.suppress(OSError):  # the next beat may succeed
                        lease.beat()
                time.sleep(BEAT_S)


_HEART = _Heart()


def holder_of(path: Path) -> bytes | None:
    """Content of a lease that stands for a file and is held; None if there is none. It may take `LEASE_S` to see."""
    for lease in _leases(path):
        with contextlib.suppress(FileNotFoundError):
            content = lease.read_bytes()
            if _still_content(lease) is None:
                return content
    return None


def _take(path: Path, shared: bool) -> _Beating:
    """The lease that stands for a file.

    Raises:
        BlockingIOError: somebody holds it.
    """
    token = secrets.token_hex(8)
    alone = path.with_name(f"{path.name}.lease")
    file = alone.with_name(f"{alone.name}-{token}") if shared else alone
    while True:
        try:
            beating = _Beating(file, token)
            break
        except FileExistsError:
            _free(file)
    try:
        # First seen by others, then looking for others: of one that shares and one that does not, at most one goes on.
        for other in _leases(path):
            if other != file and (other == alone or not shared):
                _free(other)
    except BaseException:
        beating.remove()
        raise
    return beating


def _leases(path: Path) -> Iterator[Path]:
    """Files of the leases that stand for a file."""
    with contextlib.suppress(FileNotFoundError):  # the last holder of anything there has removed the folder
        for name in sorted(os.listdir(path.parent)):
            if name.startswith(f"{path.name}.lease"):
                yield path.with_name(name)


def _free(lease: Path) -> None:
    """Remove a lease whose holder is gone: wait until it beats or has stood still.

    Raises:
        BlockingIOError: its holder lives.
    """
    aside = lease.with_name(f".{lease.name}.{secrets.token_hex(8)}")
    with contextlib.suppress(FileNotFoundError):  # released, or removed by another
        content = _still_content(lease)
        if content is None:
            raise BlockingIOError(f"{lease} is held")
        os.rename(lease, aside)
        if aside.read_bytes() != content:  # it was removed by another and made again, and its holder lives
            with contextlib.suppress(OSError):  # else that holder loses it
                os.link(aside, lease)
        aside.unlink()


def _still_content(lease: Path) -> bytes | None:
    """Content of a lease that has not changed for `LEASE_S`; None as soon as it has.

    Raises:
        FileNotFoundError: it is gone.
    """
    content, since = lease.read_bytes(), time.monotonic()
    while True:
        now = time.monotonic()  # before it is read: this process may be stopped between the two
        if lease.read_bytes() != content:
            return None
        if now - since >= LEASE_S:
            return content
        time.sleep(min(BEAT_S, LEASE_S) / 4)
