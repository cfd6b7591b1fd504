"""A folder of this machine's file systems."""

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from store.errors import StoreError
from store.places import disk
from store.places.place import ALIGNMENT, SECTOR, Place, ShardFile, is_aligned

WRITERS = 4  # files that are written at a time


class LocalFolder(Place):
    """A folder, in which several processes write at the same time.

    Args:
        folder: its path.
        unnamed: folder in it for files that have no name yet; it is not made, so nothing is created where it is gone.
    """

    def __init__(self, folder: Path, unnamed: str = ""):
        self.folder, self._unnamed = folder, unnamed

    def address(self, name: str = "") -> str:
        return str(self.folder / name) if name else str(self.folder)

    def content(self, name: str) -> bytes | None:
        return self.content_now(name) if (self.folder / name).is_file() else None

    def size(self, name: str) -> int | None:
        file = self.folder / name
        with suppress(FileNotFoundError):  # it is gone
            return file.stat().st_size if file.is_file() else None
        return None

    def has_folder(self, name: str) -> bool:
        return (self.folder / name).is_dir()

    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        try:
            return LocalShard(self.folder / name, direct)
        except (FileNotFoundError, NotADirectoryError) as error:  # others, such as a lack of rights, are no damage
            raise StoreError(f"{self.address(name)} cannot be opened ({error.strerror}); pull or extract it again") from error

    def sizes(self) -> dict[str, int]:
        """Bytes of each file that exists now, by its path."""
        sizes = ((name, self.size(name)) for name in self._files("") if not name.endswith(disk.PARTIAL))
        return {name: size for name, size in sizes if size is not None}

    def names(self) -> list[str]:
        """Names of what is directly below the address now, sorted; empty where there is nothing, or listing is not allowed."""
        try:
            return sorted(os.listdir(self.folder))
        except OSError:
            return []

    def put(self, name: str, parts: Iterable[memoryview | bytes], nbytes: int) -> None:
        """Write a file of `nbytes` bytes, its parts one after the other. It appears whole, or not at all."""
        try:
            disk.write_file(self.folder / name, parts)
        except OSError as error:
            raise StoreError(
                f"{self.folder / name} cannot be written ({error.strerror}); free some space or get the right to write there, "
                "and give the command again: it goes on where it was"
            ) from error

    def create(self, name: str, parts: Iterable[memoryview | bytes], nbytes: int) -> bool:
        """Write a file as `put` does, but only where there is none: of several writers one succeeds.

        Returns:
            False if there is one, which stays as it is. It may be ours, if the answer to an earlier try was lost.

        Raises:
            FileNotFoundError: the folder for files without a name is gone.
            OSError: what the system refuses, e.g. for lack of space.
        """
        target = self.folder / name
        if os.path.lexists(target):
            return False
        partial = disk.partial_name(target)
        if self._unnamed:
            partial = self.folder / self._unnamed / partial.name
        else:
            disk.make_folder(target.parent)
        try:
            disk.write_synced(partial, parts, direct=nbytes >= disk.DIRECT_NBYTES)
            return disk.place_file(partial, target)
        finally:
            partial.unlink(missing_ok=True)

    def link(self, source: Path, name: str) -> bool:
        """Give a file of another folder a second name here, or copy it where the system cannot; false if there is one."""
        target = self.folder / name
        (self.folder / self._unnamed).stat()
        disk.make_folder(target.parent)
        try:
            os.link(os.path.realpath(source), target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in disk.NO_LINKS:
                raise
            with source.open("rb") as file:
                return self.create(name, iter(lambda: file.read(disk.DIRECT_NBYTES), b""), 0)
        disk.sync_folder(target.parent)
        return True

    def content_now(self, name: str) -> bytes | None:
        """A whole small file, read again each time; None if there is none."""
        return disk.content_of(self.folder / name)

    def times(self, folder: str = "") -> dict[str, datetime | None]:
        """When each file below a folder was last written by the clock of the place, by path; None if it does not say."""
        return {name: _time_of(self.folder / name) for name in self._files(folder)}

    def _files(self, folder: str) -> Iterator[str]:
        """Files below a folder, as far as it is there: others may remove it meanwhile.

        Folders by name, as services list: each is looked at when its turn comes, what writers keep before the shards.
        """
        for above, folders, names in os.walk(self.folder / folder):
            folders.sort()
            inside = Path(above).relative_to(self.folder)
            yield from ((inside / name).as_posix() for name in names)

    def time_now(self, name: str) -> datetime | None:
        """When a file was last written, looked up each time; None if there is none, or the place does not say."""
        with suppress(OSError), (self.folder / name).open("rb"):  # opened, a network asks its server for what it knew before
            return _time_of(self.folder / name)
        return None

    def touch(self, name: str, content: bytes) -> None:
        """Give a file that has this content another time."""
        with suppress(OSError):  # it is gone
            os.utime(self.folder / name)

    def remove(self, names: Sequence[str]) -> None:
        """Remove files; those that are not there are left out."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def writers(self, nbytes: int) -> int:
        """How many files of at most `nbytes` are written at a time: small ones would mostly wait for the disk."""
        return WRITERS if nbytes >= disk.DIRECT_NBYTES else 1


def _time_of(file: Path) -> datetime | None:
    with suppress(OSError):  # it is gone
        return datetime.fromtimestamp(file.stat().st_mtime, UTC)
    return None


class LocalShard(ShardFile):
    def __init__(self, path: Path, direct: bool | None):
        self._path, self._descriptor, self._takes_sectors = path, -1, True
        self._descriptor = os.open(path, os.O_RDONLY)
        self.direct = direct if direct is not None else not _in_page_cache(self._descriptor)
        if self.direct:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            except (OSError, AttributeError):  # memory file systems, or a system without it
                self.direct = False
            else:
                os.close(self._descriptor)
                self._descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter ends
        if self._descriptor >= 0:
            close(self._descriptor)

    def read_into(self, offset: int, views: list[memoryview]) -> bool:
        if self.direct and not (self._takes_sectors and offset % SECTOR == 0 and all(map(_is_of_sectors, views))):
            return False
        try:
            return os.preadv(self._descriptor, views, offset) == sum(map(len, views))
        except OSError:  # `read` reports it, unless this disk has larger sectors
            self._takes_sectors = False
            return False

    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        # Whole blocks around the bytes, if the page cache is bypassed.
        begin = offset - offset % ALIGNMENT if self.direct else offset
        end = offset + nbytes
        length = end - begin
        if self.direct:
            length += -length % ALIGNMENT
        n_read = 0
        while begin + n_read < end:
            try:
                n = os.preadv(self._descriptor, [scratch[n_read:length]], begin + n_read)
            except OSError as error:
                raise StoreError(f"{self._path} cannot be read ({error.strerror}); pull or extract it again") from error
            n_read += n
            if n == 0 or (self.direct and n % ALIGNMENT):  # the end of the file
                break
        return scratch[offset - begin : min(end - begin, n_read)]


def _is_of_sectors(view: memoryview) -> bool:
    return len(view) % SECTOR == 0 and is_aligned(view, SECTOR)


def _in_page_cache(descriptor: int) -> bool:
    """Whether most of a file is in the page cache; false where the system cannot say."""
    size = os.fstat(descriptor).st_size
    libc = ctypes.CDLL(None, use_errno=True)
    if size == 0 or not hasattr(libc, "mincore"):
        return False
    pages = np.empty(-(-size // mmap.PAGESIZE), np.uint8)
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped:
        # Through numpy, for the address; it has to go before the mapping can be closed.
        view = np.frombuffer(mapped, np.uint8)
        address = view.ctypes.data
        failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data))
        del view
    return not failed and bool((pages & 1).mean() > 0.9)
