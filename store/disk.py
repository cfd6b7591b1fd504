"""Files that survive a kill or a power cut: whole and synced, or not there."""

import ctypes
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

PARTIAL = ".partial"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_AT_FDCWD, _EXCHANGE = -100, 2


def write_file(path: Path, parts: Sequence[memoryview | bytes]) -> None:
    """Write a file all or nothing, and wait until it is on the disk. A file that was there is replaced, never changed."""
    make_folder(path.parent)
    partial = path.with_name(path.name + PARTIAL)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        try:
            for part in parts:
                view = memoryview(part)
                while len(view):
                    view = view[os.write(descriptor, view[: 1 << 30]) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        partial.unlink(missing_ok=True)  # a full disk should not stay full of halves
        raise
    os.replace(partial, path)
    sync_folder(path.parent)


def append(path: Path, line: bytes) -> None:
    """Add a line to a file, and wait until it is on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        before = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, before)  # else the next line would be joined to half of this one
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
    for made in missing:
        sync_folder(made.parent)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system cannot."""
    make_folder(target.parent)
    target.unlink(missing_ok=True)
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        partial = target.with_name(target.name + PARTIAL)
        shutil.copyfile(source, partial)
        descriptor = os.open(partial, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(partial, target)
    sync_folder(target.parent)


def exchange(one: Path, other: Path) -> None:
    """Let two folders change names, at one stroke where the system can; a kill in between leaves one under `.old`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        names = os.fsencode(one), os.fsencode(other)
        if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE) == 0:
            return
    old = other.with_name(other.name + ".old")
    os.rename(other, old)
    os.rename(one, other)
    os.rename(old, one)
