"""How many bytes the sets in a cache's folder have: counted across all threads and processes that use it, and bounded."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from store.errors import StoreError
from store.places.disk import PARTIAL, open_own

TOUCH_S = 60  # a set's last use is recorded about as often


class Ledger:
    """Counts the bytes of the files in FOLDER/SET/. Every method but `locked` is called under its lock.

    Its locks are flock: a cache is one machine's, where flock always holds. Machines that are given one folder on a common disk
    may fill it beyond its bound or evict what the other reads; every block is compared with its digests, so that costs
    a fetch and no result.

    While files come or go there is no count: a process killed then leaves none, and whoever is next counts the files.

    Args:
        folder: made if it is missing; what killed processes left in it is removed.
        nbytes: most bytes of all files together.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(self, folder: Path, nbytes: int):
        self.folder, self.nbytes = folder, nbytes
        folder.mkdir(parents=True, exist_ok=True)
        with self.locked():
            self._write(self._count_bytes())
            self.make_room(0)

    def reserve(self, partial: Path, nbytes: int) -> int | None:
        """A descriptor of a new file, which has its size already and is locked; None if it cannot be had.

        Its bytes are counted from now on.
        """
        if partial.exists() and _is_unlocked(partial):  # of a process that was killed
            self.remove(partial)
        if partial.exists() or not self.make_room(nbytes):
            return None
        with self._changing(nbytes):
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(descriptor, nbytes)
            except OSError:
                os.close(descriptor)
                raise
        return descriptor

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all threads and processes; released with its process, however that ends."""
        descriptor = open_own(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def used_nbytes(self) -> int:
        try:
            return int((self.folder / "used").read_text())
        except (OSError, ValueError):  # after a power cut, or a process that was killed in `_changing`
            return self._count_bytes()

    @contextlib.contextmanager
    def _changing(self, nbytes: int) -> Iterator[None]:
        """While files are made or removed; `nbytes` more are counted afterwards, none if that failed."""
        used = self.used_nbytes()
        self._write("")
        yield
        self._write(used + nbytes)

    def _write(self, nbytes: int | str) -> None:
        with open(self.folder / "used", "w", opener=open_own) as file:
            file.write(str(nbytes))

    def _count_bytes(self) -> int:
        """Bytes of all blocks; what killed processes left is removed."""
        total = 0
        for name in self._sets():
            for entry in list(os.scandir(self.folder / name)):
                path = Path(entry.path)
                if path.name.endswith(PARTIAL) and _is_unlocked(path):
                    path.unlink()
                elif path.name != Hold.NAME:
                    total += entry.stat().st_size
        return total

    def _sets(self) -> list[str]:
        """Names of the sets in the folder, those used longest ago first."""
        used: dict[str, float] = {}
        for entry in os.scandir(self.folder):
            if entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    used[entry.name] = (Path(entry.path) / Hold.NAME).stat().st_mtime
        return sorted(used, key=lambda name: used[name])

    def make_room(self, nbytes: int) -> bool:
        """Whether there is room, after sets that nobody uses are evicted."""
        if (used := self.used_nbytes()) + nbytes <= self.nbytes:
            return True
        for name in self._sets():
            folder = self.folder / name
            if not _is_unlocked(folder / Hold.NAME):
                continue
            for entry in os.scandir(folder):
                if used + nbytes <= self.nbytes:
                    return True
                if entry.name != Hold.NAME:
                    size = entry.stat().st_size
                    with self._changing(-size):
                        os.unlink(entry.path)
                    used -= size
            if len(os.listdir(folder)) == 1:
                (folder / Hold.NAME).unlink()
                folder.rmdir()
        return used + nbytes <= self.nbytes

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError), self._changing(-path.stat().st_size):
            path.unlink()


class Hold:
    """Marks a set as in use, as long as this object and its process live."""

    NAME = "in-use"

    def __init__(self, folder: Path):
        self._descriptor = -1
        folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise StoreError(f"{folder} is a link, expected a folder of this cache; remove it, or give another folder")
        self._descriptor = open_own(folder / self.NAME, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self._touched = 0.0
        self.touch()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter ends
        if self._descriptor >= 0:
            close(self._descriptor)

    def touch(self) -> None:
        """Record that it is used now."""
        if time.monotonic() - self._touched > TOUCH_S or not self._touched:
            self._touched = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)


def _is_unlocked(path: Path) -> bool:
    """Whether no process holds a file; call it under the cache's lock, or the file could be taken meanwhile."""
    try:
        with open(path, "rb", opener=open_own) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, StoreError):
        return False
    return True
