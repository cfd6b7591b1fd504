"""One writer at a time: a lock that is released with its process, however that ends."""

import contextlib
import errno
import json
import os
import socket
import time
from pathlib import Path
from typing import BinaryIO

from store.errors import StoreError
from store.places.disk import make_folder, open_own, refusal
from store.writing import file_lease
from store.writing.file_lease import Lease, holder_of
from store.writing.file_lock import NoLocks, is_taken, take

_GONE = (errno.ENOENT, errno.ESTALE)  # removed by another process; the second on a network, whose caches may name it still
_CACHED_S = 0.005


class BusyError(StoreError):
    """Another process holds a lock."""


class Lock:
    """Held from construction until `release`, or until this object or its process is gone.

    The system's locks on the file decide; its content only tells people who holds it. On a file system that has no locks, a
    lease beside the file decides, which outlives its process by a minute, and which a process that was stopped for as
    long may lose: it calls `check` before it changes what it guards.

    Args:
        path: the file.
        resource: what is being written, for messages.
        shared: others may hold it too, if they share it.
        wait: wait until it is free.

    Raises:
        BusyError: another process holds it.
        StoreError: it cannot be made.
    """

    def __init__(self, path: Path, resource: str, shared: bool = False, wait: bool = False):
        self.path, self._resource = path, resource
        while True:
            try:
                make_folder(path.parent)
                self._file: BinaryIO = open(path, "a+b", buffering=0, opener=open_own)  # noqa: SIM115, held as long as the lock
            except OSError as error:
                if error.errno in _GONE:  # the last holder has just removed the folder
                    continue
                raise StoreError(f"a lock cannot be made: {refusal(error, path)}") from error
            try:
                self._take(shared, wait)
                # The last holder may have removed the file between our opening and our locking it.
                if os.path.samestat(path.stat(), os.fstat(self._file.fileno())):
                    break
            except BaseException as error:
                if not (isinstance(error, OSError) and error.errno in _GONE):
                    self._close()
                    raise
            if self._lease is not None:
                self._lease.release()
            self._close()
            time.sleep(_CACHED_S)
        with contextlib.suppress(OSError):  # a full disk
            self._file.truncate(0)
            self._file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())

    def _take(self, shared: bool, wait: bool) -> None:
        self._lease: Lease | None = None
        try:
            try:
                take(self._file, shared, wait)
            except NoLocks:
                self._lease = Lease(self.path, shared, wait)
        except BlockingIOError as error:
            owner = _owner(self._file.read() if not self._file.seek(0) else b"")
            raise BusyError(
                f"{self._resource} is being written by {owner}; wait until it has finished, "
                "or stop it and give this command again"
            ) from error
        except OSError as error:
            if error.errno in _GONE:  # file or folder
                raise
            raise StoreError(
                f"{self.path} cannot be locked ({error.strerror}); give an --out on a file system that has locks"
            ) from error

    @property
    def is_leased(self) -> bool:
        """Whether the file system has no locks."""
        return self._lease is not None

    def is_lost(self) -> bool:
        """Whether another process has taken it over, as happens to a lease alone."""
        return self._lease is not None and self._lease.is_lost()

    def check(self) -> None:
        """See that nobody has taken it over.

        Raises:
            StoreError: this process was stopped for longer than a lease lasts, and another has taken it over.
        """
        if self.is_lost():
            raise StoreError(
                f"this process stood still for longer than {file_lease.LEASE_S:g} s, and another has taken over "
                f"{self._resource}; what is written is safe, and the same command goes on from it"
            )

    def release(self) -> None:
        """Release it; the last holder removes the file."""
        if self._file.closed:
            return
        if self._lease is not None:
            if self._lease.release():
                self.path.unlink(missing_ok=True)
        else:
            with contextlib.suppress(BlockingIOError, NoLocks):
                take(self._file)  # alone
                self.path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # it was removed on a network
            self._file.close()


def holder(path: Path) -> str | None:
    """Who holds the lock on a file now, as text; None if nobody does. Nothing is written.

    Where a lease decides, it waits until that shows whether its holder lives.
    """
    try:
        with path.open("rb") as file:
            if is_taken(file):
                return _owner(file.read())
        content = holder_of(path)
    except FileNotFoundError:
        return None
    return None if content is None else _owner(content)


def _owner(content: bytes) -> str:
    """Who holds a lock, from the content of the file, which may be anything."""
    try:
        record = json.loads(content)
        return f"process {int(record['pid'])} on {str(record['host'])[:100]!r}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another process"
