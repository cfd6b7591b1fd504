"""One writer at a time: a lock that ends with its process, however that ends."""

import errno
import fcntl
import json
import os
import socket
from pathlib import Path

from store.errors import StoreError


class Lock:
    """Held from construction until `release`, or until this object or its process is gone.

    The system's lock on the file (flock) decides; what is written in it only tells people who holds it.

    Raises: StoreError: another writer holds it, or the file system has no locks.
    """

    def __init__(self, path: Path, what: str):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            self._file = path.open("a+b")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                owner = _owner(self._file.read() if not self._file.seek(0) else b"")
                self._file.close()
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise StoreError(
                        f"{what} is being written by {owner}; wait until it has finished, "
                        "or stop it and give this command again"
                    ) from error
                raise StoreError(
                    f"{path} cannot be locked ({error.strerror}); give an --out on a file system that has locks"
                ) from error
            # Whoever held it before may have removed the file between our opening and our locking it.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(self._file.fileno())):
                break
            self._file.close()
        self._file.truncate(0)
        self._file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
        self._file.flush()

    def release(self) -> None:
        """Remove the file and let go."""
        if not self._file.closed:
            self.path.unlink(missing_ok=True)
            self._file.close()


def _owner(content: bytes) -> str:
    """Who holds a lock, from what the file says; it may say anything."""
    try:
        said = json.loads(content)
        return f"process {int(said['pid'])} on {str(said['host'])[:100]!r}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"
