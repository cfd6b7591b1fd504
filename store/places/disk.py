"""Files that survive a kill or a power cut, whole and synced, or not there; and none that others have prepared is trusted."""

import contextlib
import ctypes
import errno
import glob
import os
import secrets
import stat
import tarfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from store.errors import StoreError
from store.places.place import ALIGNMENT, aligned_memory, is_aligned

PARTIAL = ".partial"
TOKEN = r"\.[0-9a-f]{16}"  # before it: a random number, so that nobody can prepare the name
ABANDONED_S = 3600.0  # a partial file that nobody has written to for as long is of a process that was killed
# Folders that this program makes next to what users name. Nothing in them, nor they themselves, is a link.
OWN_FOLDERS = (".staging", ".unfinished", ".upload", ".pull")
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
_STRANGE = "see who made it (`ls -l`), and remove it"
_AT_FDCWD, _EXCHANGE = -100, 2
HEADER_NBYTES = 1 << 15  # at most, of a name or of further fields before a member; tarfile searches them again and again
BEFORE = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


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


def existing_folder(path: Path) -> Path:
    """The nearest folder at or above a path that is there."""
    path = Path(os.path.abspath(path))
    return next(folder for folder in (path, *path.parents) if os.path.isdir(folder))


def room_left(error: OSError, place: Path) -> str:
    """What is left on a disk where no space was left, and what helps: `0.1 GB are free. Free some`.

    Bytes may be left where files (inodes), a quota or the largest size of a file are what ran out.
    """
    stat = os.statvfs(existing_folder(place))
    free = f"{stat.f_bavail * stat.f_frsize / 1e9:.3g} GB are free"
    if error.errno == errno.EDQUOT:
        return f"{free}, but a quota is used up (`quota -s` shows yours). Remove files, or have it raised"
    if error.errno == errno.EFBIG:
        return f"{free}, but a file may not be as large (`ulimit -f` shows the limit). Have it raised"
    if stat.f_files and stat.f_favail < FEW_FILES * stat.f_files:  # some file systems have no limit
        return f"{free}, but only {stat.f_favail:,} of {stat.f_files:,} inodes (`df -i`). Remove files, many small ones first"
    return f"{free}. Free some"


def content_of(file: Path) -> bytes | None:
    """All of a file; None if there is none."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_file(path: Path, parts: Iterable[memoryview | bytes]) -> None:
    """Write a file all or nothing, and wait until it is on the disk. A file that was there is replaced, never changed.

    `parts`: its bytes, one part after the other; each is taken when those before it are written.
    """
    with replacing(path) as partial:
        write_synced(partial, parts)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name next to `path` for a new file, which takes the place of `path` at the end of the block, if that is reached.

    Its folder is made. Partial files that killed processes have left there are removed.
    """
    make_folder(path.parent)
    for left in filter(is_abandoned, partials_of(path)):
        left.unlink(missing_ok=True)
    partial = partial_name(path)
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)  # a full disk should not stay full of halves
        raise
    sync_folder(path.parent)


def partial_name(path: Path) -> Path:
    """A name next to `path` that nobody can foresee, for what will be there when it is whole."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")


def partials_of(path: Path) -> Iterator[Path]:
    """What bears a partial name for a path now."""
    return path.parent.glob(f"{glob.escape(path.name)}.*{PARTIAL}")


def is_abandoned(partial: Path) -> bool:
    """Whether nothing of a partial file, or folder, was written for so long that its process must have been killed."""
    newest = 0.0
    for path in (partial, *(() if partial.is_symlink() else partial.rglob("*"))):
        with contextlib.suppress(FileNotFoundError):  # it has just got its name
            newest = max(newest, path.lstat().st_mtime)
    return time.time() - newest > ABANDONED_S


def remove_partials(folder: Path) -> None:
    """Remove what killed processes have left below a folder in which nobody else writes."""
    for left in folder.rglob(f"*{PARTIAL}"):
        left.unlink(missing_ok=True)


def write_synced(path: Path, parts: Iterable[memoryview | bytes], direct: bool = False) -> None:
    """Write a file under a name that counts for nothing yet, and wait until its bytes are on the disk.

    `direct`: bypass the page cache where the file system can: several times faster, for files that are not read soon.
    """
    try:
        descriptor = -1
        if direct:
            with contextlib.suppress(OSError, AttributeError):  # memory file systems, or a system without it
                descriptor = _create(path, os.O_DIRECT)
        direct = descriptor >= 0
        if not direct:
            descriptor = _create(path)
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


def _create(path: Path, flags: int = 0) -> int:
    """A descriptor of a new file. What bears its name already, such as a link, is removed and not written to."""
    path.unlink(missing_ok=True)
    return os.open(path, flags | os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def open_own(path: str | Path, flags: int) -> int:
    """A descriptor of a file of ours whose name is known beforehand; no link is followed, and nothing but a file is opened.

    Raises:
        StoreError: it is a link, or no file.
        OSError: as `os.open`.
    """
    descriptor = -1
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # else a pipe would be waited for
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise
    if descriptor >= 0 and stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    raise StoreError(f"{path} is a link, or no file, where this program has a file of its own; {_STRANGE}")


def check_no_links(path: Path) -> None:
    """See that from the first of `OWN_FOLDERS` on nothing is a link, nor another user's where everybody may write."""
    first = next((i for i, part in enumerate(path.parts) if part in OWN_FOLDERS), len(path.parts))
    for end in range(first + 1, len(path.parts) + 1):
        own = Path(*path.parts[:end])
        with contextlib.suppress(FileNotFoundError):
            own_stat, parent = own.lstat(), own.parent.stat()
            if stat.S_ISLNK(own_stat.st_mode):
                raise StoreError(f"{own} is a link to {os.readlink(own)}, expected a folder that this program made; {_STRANGE}")
            if parent.st_mode & stat.S_IWOTH and own_stat.st_uid not in (os.geteuid(), parent.st_uid):
                raise StoreError(
                    f"{own} belongs to another user (id {own_stat.st_uid}), who can change what is written there, where "
                    "everybody may write; name a place in a folder of your own"
                )


def _write(descriptor: int, view: memoryview) -> None:
    while len(view):
        view = view[os.write(descriptor, view[: 1 << 30]) :]


def _write_direct(descriptor: int, parts: Iterable[memoryview | bytes]) -> None:
    """In whole blocks from page-aligned memory, copied there if need be; the file is cut to its size in the end."""
    buffer, filled, total = aligned_memory(DIRECT_NBYTES), 0, 0
    for part in parts:
        view = memoryview(part)
        total += len(view)
        if not filled and is_aligned(view):
            whole = len(view) - len(view) % ALIGNMENT
            _write(descriptor, view[:whole])
            view = view[whole:]
        while len(view):
            n = min(len(view), DIRECT_NBYTES - filled)
            buffer[filled : filled + n] = view[:n]
            view, filled = view[n:], filled + n
            if filled == DIRECT_NBYTES:
                _write(descriptor, buffer)
                filled = 0
    _write(descriptor, buffer[: filled + -filled % ALIGNMENT])
    os.ftruncate(descriptor, total)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; their names are on the disk."""
    check_no_links(folder)
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            break
        except FileExistsError as error:  # a file is in its place; or a folder was, which another process removed this moment
            if os.path.lexists(error.filename) and not os.path.isdir(error.filename):
                raise
    for new_folder in missing:
        sync_folder(new_folder.parent)


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


class UntrustedHeader(tarfile.TarInfo):
    """Header of a member whose size leads ahead; tarfile would go back, or read as much as it says of a name."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "UntrustedHeader":
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in BEFORE and header.size > HEADER_NBYTES):
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header
