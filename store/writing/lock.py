"""One writer at a time: a lock that is released with its process, however that ends."""

import contextlib
import errno
import fcntl
import json
import os
import socket
from pathlib import Path

from store.errors import StoreError
from store.places.disk import make_folder


class BusyError(StoreError):
    """Another process holds a lock."""


class Lock:
    """Held from construction until `release`, or until this object or its process is gone.

    The system's lock on the file (flock) decides; its content only tells people who holds it.

    Args:
        path: the file.
        resource: what is being written, for messages.
        shared: others may hold it too, if they share it.
        wait: wait until it is free.

    Raises:
        BusyError: another process holds it.
        StoreError: it cannot be made, or the file system has no locks.
    """

    def __init__(self, path: Path, resource: str, shared: bool = False, wait: bool = False):
        self.path = path
        operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        while True:
            try:
                make_folder(path.parent)
                self._file = path.open("a+b", buffering=0)
            except FileNotFoundError:  # the last holder has just removed the folder
                continue
            except OSError as error:
                raise StoreError(f"{path} cannot be made ({error.strerror}); free some space, or give another --out") from error
            try:
                fcntl.flock(self._file, operation)
            except OSError as error:
                owner = _owner(self._file.read() if not self._file.seek(0) else b"")
                self._file.close()
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise BusyError(
                        f"{resource} is being written by {owner}; wait until it has finished, "
                        "or stop it and give this command again"
                    ) from error
                raise StoreError(
                    f"{path} cannot be locked ({error.strerror}); give an --out on a file system that has locks"
                ) from error
            # The last holder may have removed the file between our opening and our locking it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(self._file.fileno())):
                    break
            self._file.close()
        with contextlib.suppress(OSError):  # a full disk
            self._file.truncate(0)
            self._file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())

    def release(self) -> None:
        """Release it; the last holder removes the file."""
        if not self._file.closed:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.path.unlink(missing_ok=True)
            self._file.close()


def holder(path: Path) -> str | None:
    """Who holds the lock on a file now, as text; None if nobody does. Nothing is written.

    While it looks, for some microseconds, nobody can take that lock.
    """
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return _owner(file.read())
    except FileNotFoundError:
        pass
    return None


def _owner(content: bytes) -> str:
    """Who holds a lock, from the content of the file, which may be anything."""
    try:
        record = json.loads(content)
        return f"process {int(record['pid'])} on {str(record['host'])[:100]!r}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another process"
