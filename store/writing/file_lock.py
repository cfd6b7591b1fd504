"""The system's locks on an open file: they hold across the nodes of a file system, and end with their process.

Open-file-description locks decide: on GPFS, CephFS, EFS, Lustre and NFS every node sees them. flock holds on one node alone on
some of these, so it is taken only beside them, against programs that lock by flock alone. Systems other than Linux have flock.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

HAS_OFD = sys.platform == "linux"
# Linux's numbers, which not every Python names.
_GETLK, _SETLK, _SETLKW = (
    getattr(fcntl, name, number) for name, number in (("F_OFD_GETLK", 36), ("F_OFD_SETLK", 37), ("F_OFD_SETLKW", 38))
)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # of file systems that have none
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_STRUCT = "hhqqi0q"  # struct flock: type, whence, start, length (0: all), process
_GLIMPSES, _GLIMPSE_S = 10, 0.01  # others hold a flock for some microseconds to see whether there is one


class NoLocks(Exception):
    """A file system has no locks of this kind."""


def take(file: BinaryIO, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file, which must be writable; a lock that is held already becomes shared or exclusive.

    Raises:
        BlockingIOError: somebody else holds it.
        NoLocks: the file system has no locks of any kind.
        OSError: it cannot be locked for another reason.
    """
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        _take_ofd(file, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, _SETLKW if wait else _SETLK)
    except NoLocks:
        with _errors():
            fcntl.flock(file, operation | (0 if wait else fcntl.LOCK_NB))
        return
    with contextlib.suppress(NoLocks):
        _take_flock_beside(file, operation, wait)


def _take_ofd(file: BinaryIO, kind: int, command: int) -> None:
    if not HAS_OFD:
        raise NoLocks
    with _errors():
        fcntl.fcntl(file, command, struct.pack(_STRUCT, kind, os.SEEK_SET, 0, 0, 0))


def _take_flock_beside(file: BinaryIO, operation: int, wait: bool) -> None:
    for attempt in itertools.count(1):
        try:
            with _errors():
                fcntl.flock(file, operation | fcntl.LOCK_NB)
                break
        except BlockingIOError:
            if attempt == _GLIMPSES and _are_one(Path(file.name).parent):
                break
            if attempt >= _GLIMPSES and not wait:
                _take_ofd(file, fcntl.F_UNLCK, _SETLK)
                raise
        time.sleep(_GLIMPSE_S)


def _are_one(folder: Path) -> bool:
    """Whether a file system takes both kinds for one, and refuses one to whom holds the other: then flock is not needed."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".lock-") as scratch:
        _take_ofd(scratch, fcntl.F_WRLCK, _SETLK)  # type: ignore[arg-type]
        try:
            fcntl.flock(scratch, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def is_taken(file: BinaryIO) -> bool:
    """Whether somebody else holds a lock on an open file. For some microseconds, its flock is held."""
    with contextlib.suppress(NoLocks), _errors():
        if HAS_OFD:
            lock = fcntl.fcntl(file, _GETLK, struct.pack(_STRUCT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            if struct.unpack(_STRUCT, lock)[0] != fcntl.F_UNLCK:
                return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # NFS also refuses because this file is not writable
        return error.errno in _TAKEN
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """One error for each meaning: systems have several numbers."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise NoLocks from error
        if error.errno in _TAKEN:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK)) from error
        raise
