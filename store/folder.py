"""Where a feature set lies: a local folder, or any place that fsspec reaches (s3://, gs://, memory://, …)."""

import ctypes
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from store.aligned import ALIGNMENT
from store.errors import StoreError

PIECE_NBYTES = 1 << 20  # enough for a disk to be at full speed, little enough to stay in the processor's cache


class ShardFile(ABC):
    """One shard, opened for reading at any offset, by several threads at once."""

    @abstractmethod
    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        """`nbytes` bytes from `offset`; they may lie in `scratch`, or end early where the file does.

        `scratch` is page-aligned and at least `nbytes` + 2 · ALIGNMENT long.
        """

    def read_into(self, offset: int, views: list[memoryview]) -> bool:
        """Fill `views` one after the other from `offset`, without a copy in between; False if that cannot be done here."""
        return False


class Folder(ABC):
    """A feature set's files by their path inside it, and how they want to be read.

    Attributes:
        piece_nbytes: at most read at once.
        requests: how many reads at a time; more than one where each waits for a network.
        block_nbytes: neighbours that a shuffled epoch keeps together; None: as few as make a disk fast.
    """

    piece_nbytes = PIECE_NBYTES
    requests = 1
    block_nbytes: int | None = None

    @abstractmethod
    def path(self, name: str) -> str:
        """For messages."""

    @abstractmethod
    def content(self, name: str) -> bytes | None:
        """All of a small file; None if there is none."""

    def expect(self, names: Iterable[str]) -> None:  # noqa: B027, a disk needs no warning
        """Small files whose content will be asked for soon."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""

    @abstractmethod
    def has_folder(self, name: str) -> bool:
        """Whether anything lies there."""

    @abstractmethod
    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        """A shard.

        Args:
            direct: bypass the page cache; None does so unless most of the file is in it.

        Raises:
            StoreError: it is missing or cannot be read.
        """


def open_folder(path: str | os.PathLike[str] | Folder) -> Folder:
    """A folder on this machine or in an object store, as the address says.

    Raises:
        StoreError: a protocol that is unknown, or whose package is not installed.
    """
    if isinstance(path, Folder):
        return path
    text = os.fspath(path)
    if "://" not in text or text.startswith("file://"):
        return Local(Path(text.removeprefix("file://")))
    from store.remote import Remote

    return Remote(text)


class Local(Folder):
    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, name: str) -> str:
        return str(self.folder / name) if name else str(self.folder)

    def content(self, name: str) -> bytes | None:
        file = self.folder / name
        return file.read_bytes() if file.is_file() else None

    def size(self, name: str) -> int | None:
        file = self.folder / name
        return file.stat().st_size if file.is_file() else None

    def has_folder(self, name: str) -> bool:
        return (self.folder / name).is_dir()

    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        try:
            return LocalShard(self.folder / name, direct)
        except OSError as error:
            raise StoreError(f"{self.path(name)} cannot be opened ({error.strerror}); pull or extract it again") from error


class LocalShard(ShardFile):
    def __init__(self, path: Path, direct: bool | None):
        self._path, self._descriptor = path, -1
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
        if self.direct:  # which needs aligned memory
            return False
        try:
            return os.preadv(self._descriptor, views, offset) == sum(map(len, views))
        except OSError:  # `read` says which
            return False

    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        # Whole blocks around what is wanted, if the page cache is bypassed.
        begin = offset - offset % ALIGNMENT if self.direct else offset
        end = offset + nbytes
        length = end - begin
        if self.direct:
            length += -length % ALIGNMENT
        got = 0
        while begin + got < end:
            try:
                n = os.preadv(self._descriptor, [scratch[got:length]], begin + got)
            except OSError as error:
                raise StoreError(f"{self._path} cannot be read ({error.strerror}); pull or extract it again") from error
            got += n
            if n == 0 or (self.direct and n % ALIGNMENT):  # the end of the file
                break
        return scratch[offset - begin : min(end - begin, got)]


def _in_page_cache(descriptor: int) -> bool:
    """Whether most of a file is in the page cache; false where the system does not tell."""
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
