"""Where a feature set lies: a local folder, or any place that fsspec reaches (s3://, gs://, memory://, …)."""

import ctypes
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np

from store.aligned import ALIGNMENT
from store.errors import StoreError


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
    """A feature set's files by their path inside it."""

    @abstractmethod
    def path(self, name: str) -> str:
        """For messages."""

    @abstractmethod
    def content(self, name: str) -> bytes | None:
        """All of a small file; None if there is none."""

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

        Raises: StoreError: it is missing or cannot be read.
        """


def open_folder(path: str | os.PathLike[str] | Folder) -> Folder:
    """Raises: StoreError: a protocol that is unknown, or whose package is not installed."""
    if isinstance(path, Folder):
        return path
    text = os.fspath(path)
    return Remote(text) if "://" in text and not text.startswith("file://") else Local(Path(text.removeprefix("file://")))


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
            return _LocalShard(self.folder / name, direct)
        except OSError as error:
            raise StoreError(f"{self.path(name)} cannot be opened ({error.strerror}); pull or extract it again") from error


class _LocalShard(ShardFile):
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


class Remote(Folder):
    """Through fsspec. Listed once: a feature set does not change under its readers."""

    def __init__(self, url: str):
        import fsspec  # type: ignore[import-untyped]

        self.url = url.rstrip("/")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url)
            listed = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            listed = {}
        except (ImportError, ValueError) as error:
            raise StoreError(f"{url} cannot be opened: {error}") from error
        except Exception as error:  # each service has its own errors
            raise StoreError(f"{url} cannot be listed: {error}; check the address, the network and your credentials") from error
        self._root = self._root.rstrip("/")
        prefix = len(self._root.lstrip("/")) + 1
        self._sizes = {name.lstrip("/")[prefix:]: entry["size"] for name, entry in listed.items()}

    def path(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def content(self, name: str) -> bytes | None:
        return self.range(name, 0, self._sizes[name]) if name in self._sizes else None

    def size(self, name: str) -> int | None:
        return self._sizes.get(name)

    def has_folder(self, name: str) -> bool:
        return any(other.startswith(f"{name}/") for other in self._sizes)

    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        if name not in self._sizes:
            raise StoreError(f"{self.path(name)} cannot be opened (it is missing); push or extract it again")
        return _RemoteShard(self, name)

    def range(self, name: str, start: int, stop: int) -> bytes:
        """Raises: StoreError: the service does not give these bytes."""
        try:
            return self._fs.cat_file(f"{self._root}/{name}", start=start, end=stop) if stop > start else b""
        except Exception as error:  # each service has its own errors
            raise StoreError(f"{self.path(name)} cannot be read: {error}") from error


class _RemoteShard(ShardFile):
    def __init__(self, folder: Remote, name: str):
        self._folder, self._name = folder, name

    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        return memoryview(self._folder.range(self._name, offset, offset + nbytes))
