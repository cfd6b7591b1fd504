"""Shards of feature sets in an object store, kept on this machine's disk, up to a number of bytes."""

import contextlib
import errno
import fcntl
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock

import xxhash

from store.errors import StoreError
from store.places.disk import PARTIAL, open_own
from store.places.local import LocalShard
from store.places.place import Place, ShardFile, map_parallel

REQUESTS = 4  # for one shard at a time: a connection alone does not fill a network
TOUCH_S = 60  # a set's last use is recorded about as often
IN_USE = "in-use"  # in the folder of a set: locked by those who have it open, changed when it is used


class DiskCache:
    """Whole shards, in FOLDER/SET/, bounded over all sets and processes that use the folder.

    A shard is fetched when any part of it is read for the first time. A set's name is made of its key and its digest, so
    nothing stale is read. Sets that no process has open are evicted, those used longest ago first. A set in use is kept: it is
    read again and again from end to end, so any shard would be needed again soon. What does not fit is read past the
    cache. A damaged shard is fetched again: its rows are compared with the set's own digests like any others.

    Room is made and taken under a lock (flock: a cache is one machine's, where it always holds), by files that have their size
    before they are written, so the bound holds at all times.

    Args:
        folder: made if it is missing; what killed processes left in it is removed.
        nbytes: most bytes of all shards together.

    Raises:
        StoreError: `nbytes` is not positive, or the folder cannot be used.
    """

    def __init__(self, folder: Path, nbytes: int):
        if nbytes <= 0:
            raise StoreError(f"a disk cache of {nbytes} bytes is asked for, expected more than 0; or give no cache")
        self.folder, self.nbytes = Path(folder).absolute(), nbytes
        self._stopped = False  # the disk is full, or not writable
        self._mutex, self._fetching = Lock(), dict[Path, Lock]()
        with self.usable():
            self.folder.mkdir(parents=True, exist_ok=True)
            with self.locked():
                self._make_room(0)

    def __reduce__(self) -> tuple[type["DiskCache"], tuple[Path, int]]:
        return DiskCache, (self.folder, self.nbytes)

    @contextlib.contextmanager
    def usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"{self.folder} cannot be used as a disk cache ({error.strerror}); give another folder, or no cache"
            ) from error

    def shard(
        self, path: Path, nbytes: int, fetch: Callable[[], Iterable[memoryview]], direct: bool | None
    ) -> LocalShard | None:
        """A shard that is kept as `path`, fetched first if need be, once for all threads; None if there is no room for it."""

        def kept() -> LocalShard | None:
            with contextlib.suppress(OSError):
                if path.stat().st_size == nbytes:
                    return LocalShard(path, direct)
            return None

        with self._mutex:
            fetching = self._fetching.setdefault(path, Lock())
        with fetching:
            if (shard := kept()) is not None or self._stopped:
                return shard
            try:
                self._keep(path, nbytes, fetch)
            except OSError as error:  # reading goes on, but no more shards are kept
                with self._mutex:
                    is_first, self._stopped = not self._stopped, True
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                remedy = "Free some space, or give it fewer bytes" if full else "See who may write there"
                text = f"the disk cache {self.folder} keeps nothing more ({error.strerror}); reading goes on. {remedy}"
                if is_first:
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
            return kept()

    def _keep(self, path: Path, nbytes: int, fetch: Callable[[], Iterable[memoryview]]) -> None:
        """Write a shard where there is room for it, all or nothing; or wait until another process has."""
        partial = path.with_name(f"{path.name}{PARTIAL}")
        while (reserved := self._reserve(path, partial, nbytes)) is not None:
            descriptor, is_ours = reserved
            try:
                if not is_ours:
                    fcntl.flock(descriptor, fcntl.LOCK_SH)  # until it is closed there
                    continue
                for piece in fetch():
                    while len(piece):
                        piece = piece[os.write(descriptor, piece) :]
                os.fsync(descriptor)
                with self.locked():  # whoever counts bytes sees one of the two
                    os.rename(partial, path)
            except BaseException:
                with self.locked():
                    partial.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)

    def _reserve(self, path: Path, partial: Path, nbytes: int) -> tuple[int, bool] | None:
        """A descriptor of the partial file, which has its size and is locked until it is closed; and whether it is ours.

        None if the shard is there, or there is no room for it.
        """
        with self.locked():
            if path.exists() and path.stat().st_size == nbytes:
                return None
            if partial.exists() and not _is_unlocked(partial):
                return os.open(partial, os.O_RDONLY), False
            for left in (path, partial):
                left.unlink(missing_ok=True)
            if not self._make_room(nbytes):
                return None
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                os.ftruncate(descriptor, nbytes)
            except OSError:
                os.close(descriptor)
                raise
            return descriptor, True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all threads and processes; released with its process, however that ends."""
        descriptor = open_own(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make_room(self, nbytes: int) -> bool:
        """Whether there is room, after sets that nobody uses are evicted, and what killed processes left."""
        sets: list[tuple[float, Path, dict[Path, int]]] = []
        for entry in os.scandir(self.folder):
            if entry.is_dir(follow_symlinks=False):
                files = {Path(file.path): file.stat().st_size for file in os.scandir(entry.path)}
                for left in [file for file in files if file.name.endswith(PARTIAL) and _is_unlocked(file)]:
                    left.unlink(missing_ok=True)
                    del files[left]
                with contextlib.suppress(FileNotFoundError):
                    mark = Path(entry.path) / IN_USE
                    sets.append((mark.stat().st_mtime, mark, {f: n for f, n in files.items() if f != mark}))
        used = sum(sum(files.values()) for _, _, files in sets)
        for _, mark, files in sorted(sets, key=lambda found: found[0]):
            if used + nbytes <= self.nbytes:
                return True
            if not _is_unlocked(mark):
                continue
            for file, size in files.items():
                if used + nbytes > self.nbytes:
                    file.unlink()
                    used -= size
            if os.listdir(mark.parent) == [IN_USE]:
                mark.unlink()
                mark.parent.rmdir()
        return used + nbytes <= self.nbytes


class CachedSet:
    """A feature set of an object store in a cache, marked as in use as long as this object and its process live.

    Args:
        cache: keeps its shards.
        name: of the set's folder: hexadecimal digits.
    """

    def __init__(self, cache: DiskCache, name: str):
        self.cache, self.folder, self._touched, self._descriptor = cache, cache.folder / name, 0.0, -1
        with cache.usable(), cache.locked():
            self.folder.mkdir(exist_ok=True)
            if self.folder.is_symlink():
                raise StoreError(f"{self.folder} is a link, expected a folder of this cache; remove it, or give another folder")
            self._descriptor = open_own(self.folder / IN_USE, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self.touch()

    def __reduce__(self) -> tuple[type["CachedSet"], tuple[DiskCache, str]]:
        return CachedSet, (self.cache, self.folder.name)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter ends
        if self._descriptor >= 0:
            close(self._descriptor)

    def touch(self) -> None:
        """Record that it is used now."""
        if time.monotonic() - self._touched > TOUCH_S or not self._touched:
            self._touched = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)

    def file(self, name: str) -> Path:
        """The file that holds a shard; hashed: a name read from a file must not lead to another folder."""
        return self.folder / xxhash.xxh3_128_hexdigest(name.encode())

    def drop(self, name: str) -> bool:
        """Remove a shard; false if it is not kept."""
        try:
            self.file(name).unlink()
        except FileNotFoundError:
            return False
        return True


class CachedShard(ShardFile):
    """A shard that is fetched when it is first read; past the cache where that has no room for it."""

    def __init__(self, kept: CachedSet, place: Place, name: str, shard: ShardFile, direct: bool | None):
        self._kept, self._place, self._name, self._remote, self._direct = kept, place, name, shard, direct
        self._file: ShardFile | None = None

    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        return self._open_original().read(offset, nbytes, scratch)

    def read_into(self, offset: int, views: list[memoryview]) -> bool:
        return self._open_original().read_into(offset, views)

    def _open_original(self) -> ShardFile:
        self._kept.touch()
        if self._file is None:
            nbytes, piece = self._place.size(self._name) or 0, self._place.piece_nbytes

            def fetched() -> Iterator[memoryview]:
                read = lambda start: self._remote.read(start, min(piece, nbytes - start), memoryview(b""))  # noqa: E731
                starts = range(0, nbytes, piece)
                for some in range(0, len(starts), REQUESTS):  # no more than these are in memory
                    yield from map_parallel(read, starts[some : some + REQUESTS], min(REQUESTS, self._place.requests))

            self._file = self._kept.cache.shard(self._kept.file(self._name), nbytes, fetched, self._direct) or self._remote
        return self._file


def _is_unlocked(path: Path) -> bool:
    """Whether no process holds a file; call it under the cache's lock, or the file could be taken meanwhile."""
    try:
        with open(path, "rb", opener=open_own) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, StoreError):
        return False
    return True
