"""One writer at a time: a lock that ends with its process, however that ends."""

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

    The system's lock on the file (flock) decides; what is written in it only tells people who holds it.

    Args:
        path: the file.
        what: is being written, for messages.
        shared: others may hold it too, if they share it.
        wait: until it is free.

    Raises:
        BusyError: another process holds it.
        StoreError: it cannot be made, or the file system has no locks.
    """

    def __init__(self, path: Path, what: str, shared: bool = False, wait: bool = False):
        self.path = path
        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        while True:
            try:
                make_folder(path.parent)
                self._file = path.open("a+b", buffering=0)
            except FileNotFoundError:  # whoever held it before has just removed the folder
                continue
            except OSError as error:
                raise StoreError(f"{path} cannot be made ({error.strerror}); free some space, or give another --out") from error
            try:
                fcntl.flock(self._file, how)
            except OSError as error:
                owner = _owner(self._file.read() if not self._file.seek(0) else b"")
                self._file.close()
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise BusyError(
                        f"{what} is being written by {owner}; wait until it has finished, "
                        "or stop it and give this command again"
                    ) from error
                raise StoreError(
                    f"{path} cannot be locked ({error.strerror}); give an --out on a file system that has locks"
                ) from error
            # Whoever held it before may have removed the file between our opening and our locking it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(self._file.fileno())):
                    break
            self._file.close()
        with contextlib.suppress(OSError):  # a full disk
            self._file.truncate(0)
            self._file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())

    def release(self) -> None:
        """Let go; whoever is the last to hold it removes the file."""
        if not self._file.closed:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.path.unlink(missing_ok=True)
            self._file.close()


def holder(path: Path) -> str | None:
    """Who holds the lock in a file now, in words; None if nobody does. Nothing is written.

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
    """Who holds a lock, from what the file says; it may say anything."""
    try:
        said = json.loads(content)
        return f"process {int(said['pid'])} on {str(said['host'])[:100]!r}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another process"
