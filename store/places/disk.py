"""Files that survive a kill or a power cut: whole and synced, or not there."""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from store.errors import StoreError
from store.places.aligned import ALIGNMENT, aligned_memory, is_aligned

PARTIAL = ".partial"
OLD = ".old"
DIRECT_NBYTES = 4 << 20  # written at once when the page cache is bypassed
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK, errno.EACCES)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FEW_FILES = 0.01  # of those that a disk can hold
_REMEDIES = {
    (errno.EACCES, errno.EPERM): "see whose it is (`ls -ld`), and get the right, or name another place",
    (errno.EROFS,): "name a place on a file system that takes files",
    (errno.ENOENT,): "nothing of this name is there, or not any more; correct the name",
    (errno.ENOTDIR, errno.EISDIR, errno.EEXIST): "another kind of file has this name; name another place",
    (errno.ENAMETOOLONG,): "choose a shorter name",
    (errno.EMFILE, errno.ENFILE): "allow more files to be open (`ulimit -n`)",
}
_AGAIN = "give the command again; if it happens again, see what the disk or the network reports (`dmesg`)"
_AT_FDCWD, _EXCHANGE = -100, 2


def refusal(error: OSError, place: Path) -> str:
    """Message for what the system refused.

    Args:
        place: the file of the error, if it names one; else a folder on the disk that was most likely used.
    """
    reason = error.strerror or str(error)
    if error.errno in NO_SPACE:
        where = place if error.filename else f"the disk of {place}"
        return f"{where}: {reason}; {room_left(error, place)}, and give the same command again"
    remedy = next((remedy for codes, remedy in _REMEDIES.items() if error.errno in codes), _AGAIN)
    return f"{f'{place}: ' if error.filename else ''}{reason}; {remedy}"


def check_writable(folder: Path) -> None:
    """Refuse a folder for results in which nothing can be written, before they are computed; nothing is made.

    Raises:
        StoreError: it, or what it would be made in, is no folder, is not this user's to write, or on a read-only file system.
    """
    path = Path(os.path.abspath(folder))
    there = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not os.path.isdir(there):
        code = errno.ENOTDIR
    elif os.statvfs(there).f_flag & os.ST_RDONLY:
        code = errno.EROFS
    elif not os.access(there, os.W_OK | os.X_OK):
        code = errno.EACCES
    else:
        return
    raise StoreError(f"{folder} cannot be written: {refusal(OSError(code, os.strerror(code), str(there)), there)}")


def room_left(error: OSError, place: Path) -> str:
    """What is left on a disk where no space was left, and what helps: `0.1 GB are free. Free some`.

    Bytes may be left where files (inodes), a quota or the largest size of a file are what ran out.
    """
    path = Path(os.path.abspath(place))
    folder = next(folder for folder in (path, *path.parents) if os.path.isdir(folder))
    stat = os.statvfs(folder)
    free = f"{stat.f_bavail * stat.f_frsize / 1e9:.3g} GB are free"
    if error.errno == errno.EDQUOT:
        return f"{free}, but a quota is used up (`quota -s` shows yours). Remove files, or have it raised"
    if error.errno == errno.EFBIG:
        return f"{free}, but a file may not be as large (`ulimit -f` shows the limit). Have it raised"
    if stat.f_files and stat.f_favail < FEW_FILES * stat.f_files:  # some file systems have no limit
        return f"{free}, but only {stat.f_favail:,} of {stat.f_files:,} inodes (`df -i`). Remove files, many small ones first"
    return f"{free}. Free some"


def write_file(path: Path, parts: Iterable[memoryview | bytes]) -> None:
    """Write a file all or nothing, and wait until it is on the disk. A file that was there is replaced, never changed.

    `parts`: its bytes, one part after the other; each is taken when those before it are written.
    """
    make_folder(path.parent)
    partial = path.with_name(path.name + PARTIAL)
    write_synced(partial, parts)
    os.replace(partial, path)
    sync_folder(path.parent)


def write_synced(path: Path, parts: Iterable[memoryview | bytes], direct: bool = False) -> None:
    """Write a file under a name that counts for nothing yet, and wait until its bytes are on the disk.

    `direct`: bypass the page cache where the file system can: several times faster, for files that are not read soon.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        descriptor = -1
        if direct:
            with contextlib.suppress(OSError, AttributeError):  # memory file systems, or a system without it
                descriptor = os.open(path, flags | os.O_DIRECT, 0o666)
        direct = descriptor >= 0
        if not direct:
            descriptor = os.open(path, flags, 0o666)
        try:
            if direct:
                _write_direct(descriptor, parts)
            else:
                for part in parts:
                    _write(descriptor, memoryview(part))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        path.unlink(missing_ok=True)  # a full disk should not stay full of halves
        raise


def place_file(path: Path, target: Path) -> bool:
    """Give a file that is on the disk its name; false if another file has it already.

    Raises:
        FileNotFoundError: it is not there; no folder is made then.
    """
    path.stat()
    make_folder(target.parent)
    target.with_name(target.name + PARTIAL).unlink(missing_ok=True)  # of an earlier version that was killed
    try:
        os.link(path, target)  # a rename would replace what is there
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if target.exists():
            return False
        os.rename(path, target)
    path.unlink(missing_ok=True)
    sync_folder(target.parent)
    return True


def _write(descriptor: int, view: memoryview) -> None:
    while len(view):
        view = view[os.write(descriptor, view[: 1 << 30]) :]


def _write_direct(descriptor: int, parts: Iterable[memoryview | bytes]) -> None:
    """In whole blocks from page-aligned memory, copied there if need be; the file is cut to its size in the end."""
    buffer, spare = aligned_memory(DIRECT_NBYTES), aligned_memory(DIRECT_NBYTES)
    filled = total = 0
    with ThreadPoolExecutor(1, "beyondcls-writer") as meanwhile:  # one buffer is written while the other is filled
        writing: Future[None] | None = None
        for part in parts:
            view = memoryview(part)
            total += len(view)
            if not filled and is_aligned(view):
                if writing is not None:
                    writing.result()
                whole = len(view) - len(view) % ALIGNMENT
                _write(descriptor, view[:whole])
                view = view[whole:]
            while len(view):
                n = min(len(view), DIRECT_NBYTES - filled)
                buffer[filled : filled + n] = view[:n]
                view, filled = view[n:], filled + n
                if filled == DIRECT_NBYTES:
                    if writing is not None:
                        writing.result()
                    writing = meanwhile.submit(_write, descriptor, buffer)
                    buffer, spare, filled = spare, buffer, 0
        if writing is not None:
            writing.result()
    _write(descriptor, buffer[: filled + -filled % ALIGNMENT])
    os.ftruncate(descriptor, total)


def append(path: Path, line: bytes) -> None:
    """Add a line to a file, and wait until it is on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)  # else the next line would be joined to half of this one
            raise
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; their names are on the disk."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for new_folder in missing:
        sync_folder(new_folder.parent)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system cannot."""
    make_folder(target.parent)
    target.unlink(missing_ok=True)
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        partial = target.with_name(target.name + PARTIAL)
        try:
            shutil.copyfile(source, partial)
            descriptor = os.open(partial, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        os.replace(partial, target)
    sync_folder(target.parent)


def exchange(first: Path, second: Path) -> None:
    """Swap the names of two folders, atomically where the system can; elsewhere a kill leaves the second as FIRST.old."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        names = os.fsencode(first), os.fsencode(second)
        if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE) == 0:
            return
    aside = first.with_name(first.name + OLD)  # where only this program has files
    os.rename(second, aside)
    try:
        os.rename(first, second)
    except OSError:  # others have made it this moment
        with contextlib.suppress(OSError):
            os.rename(aside, second)
        raise
    os.rename(aside, first)
