"""Reading a data set's bytes, of files and of services, decoding them, and what is noted of them while a set is opened.

What keeps bytes from being read is tried again, and then stops the run; damage is only what a decoder says of bytes.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, TypeVar

from store import BeyondClsError
from store.shown import Bars, no_bars

T = TypeVar("T")
BLOCK_NBYTES = 8 << 20  # read ahead: a tar is indexed from end to end
IN_PARTS = "copy it here first, or give it as 'pipe:curl -fsSL URL'"
PAUSES = (0.1, 1.0, 4.0)  # seconds before another try: a network file system comes back, other decoders give memory back
CHANGED = "it has changed since the data set was opened; run again when nothing writes to it"
NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)  # a name leads to no file, on any disk
FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)  # another try would end alike

State = tuple[int, int, int]  # of a file or folder: size, time of change in ns, inode
GONE: State = (-1, -1, -1)
NEVER: State = (-2, -2, -2)  # of none


@dataclass(frozen=True)
class Opening:
    """What concerns the opening of a data set and its form need not hand on.

    Attributes:
        bars: show progress, as thousands of label maps take minutes.
        outside: whether the paths of a .csv may lead out of its folder.
        arguments: of a function that gives the images.
        sources: states of all that the list of images is made of.
    """

    bars: Bars | None = None
    outside: bool = False
    arguments: Mapping[str, Any] | None = None
    sources: dict[str, State] = field(default_factory=dict)

    @contextmanager
    def begun(self) -> Iterator[None]:
        token = _opening.set(self)
        try:
            yield
        finally:
            _opening.reset(token)


_opening: ContextVar[Opening | None] = ContextVar("opening", default=None)


def opening() -> Opening:
    """That of the data set which is being opened; an empty one where none is, or it is open already."""
    return _opening.get() or Opening()


def opening_bar(what: str, total: int, unit: str) -> AbstractContextManager[Callable[[int], None]]:
    """A bar, or none where a data set is opened without one or is open already."""
    return (opening().bars or no_bars)(what, total, unit)


def made_of(*paths: str | Path, lasts: bool = True) -> None:
    """Say that the list of images depends on a folder or file, before it is listed or read, or on whether there is one;
    `lasts`: whether that is seen by its state, as long as the list is used.
    """
    if (current := _opening.get()) is not None:
        for path in map(str, paths):
            if not lasts:
                current.sources[path] = NEVER
            elif path not in current.sources:
                current.sources[path] = state_of(path)


def state_of(path: str | Path) -> State:
    """Of a file or folder; GONE where it cannot be looked at."""
    with suppress(OSError, ValueError):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns, status.st_ino & (1 << 63) - 1
    return GONE


class Damage(Exception):
    """What a decoder says of bytes; the message is the same each time."""


def patiently(work: Callable[[], T], what: str) -> T:
    """The result of some work, which is tried a few times where the machine, not the data, is at fault.

    Args:
        work: raises OSError or MemoryError where the machine fails.
        what: is read, for the message.

    Raises:
        BeyondClsError: it fails each time; or what is read is not there, or may not be read.
    """
    try:
        return try_patiently(work)
    except (OSError, MemoryError) as error:
        reason = "memory does not suffice" if isinstance(error, MemoryError) else error.strerror or reason_of(error)
        raise BeyondClsError(
            f"{what} cannot be read: {reason}. That says nothing about the image, so the run stops and nothing is recorded; "
            "look at the disk, the network or the memory of this machine, and give the same command again"
        ) from error


def try_patiently(work: Callable[[], T]) -> T:
    """The same, with the error of the last try."""
    for pause in PAUSES:
        try:
            return work()
        except FINAL:
            raise
        except (OSError, MemoryError):
            time.sleep(pause)
    return work()


def content_of(file: Path) -> bytes | None:
    """All bytes of a file; None if there is none of this name. Raises BeyondClsError, as `patiently`."""
    made_of(file)

    def work() -> bytes | None:
        try:
            return file.read_bytes()
        except OSError as error:
            if error.errno in NOWHERE:
                return None
            raise

    return patiently(work, str(file))


def decode_bytes(decode: Callable[[bytes], T], encoded: bytes, what: str) -> T:
    """What a decoder makes of bytes.

    Raises:
        Damage: they are damaged, or of an unknown form.
        BeyondClsError: memory does not suffice.
    """

    def work() -> T:
        try:
            return decode(encoded)
        except MemoryError:
            raise
        except Exception as error:  # PIL raises many kinds
            if "out of memory" in str(error):  # a decoder in C
                raise MemoryError(str(error)) from error
            raise Damage(reason_of(error)) from error

    return patiently(work, what)


def reason_of(error: Exception) -> str:
    """What an error says, without addresses in memory, which differ from run to run; never empty."""
    return re.sub(r"\s*<[^<>]* at 0x[0-9a-fA-F]+>", "", str(error)).strip() or type(error).__name__


@dataclass(frozen=True)
class RemoteFile:
    """A file that fsspec reaches (s3://, https://, gs://, memory://, …), as far as it resembles a Path; `url` may hold
    credentials or a signature, which messages leave out.
    """

    url: str

    def __str__(self) -> str:
        return re.sub(r"//[^/@]*@", "//", self._address_without_query)

    @property
    def _address_without_query(self) -> str:
        """The address without a query, which other protocols than HTTP do not have."""
        return self.url.partition("?")[0] if self.url.startswith("http") else self.url

    @property
    def name(self) -> str:
        return self._address_without_query.rpartition("/")[2]

    @property
    def parent(self) -> "RemoteFile":
        return RemoteFile(self._address_without_query.rpartition("/")[0])

    def __truediv__(self, name: str) -> "RemoteFile":
        return RemoteFile(f"{self._address_without_query.rstrip('/')}/{name}")

    def is_file(self) -> bool:
        """Whether there is such a file; BeyondClsError if the service does not answer."""
        with self._stop_on_failure() as (fs, path):
            try:
                return bool(fs.info(path)["type"] == "file")
            except FileNotFoundError:
                return False

    def is_dir(self) -> bool:
        """Whether it is a folder that can be listed; over HTTP, nothing is."""
        return not self.url.startswith("http") and self._request("isdir")

    def exists(self) -> bool:
        """False also where one may not look."""
        return self._request("exists")

    def glob(self, pattern: str = "") -> list["RemoteFile"]:
        """Files in this folder that match `pattern`, or those that match this path itself, in alphabetical order."""
        fs, path = self._file_system_and_path
        names = self._request("glob", f"{path.rstrip('/')}/{pattern}" if pattern else path)
        return [RemoteFile(fs.unstrip_protocol(name)) for name in sorted(names)]

    def read_all(self) -> bytes:
        return bytes(self._request("cat_file"))

    def read_with(self, work: Callable[[IO[bytes]], T]) -> T:
        """The result of `work` on the file, read from end to end, with seeking; BeyondClsError as `read`."""
        how = {"mode": "rb", "block_size": BLOCK_NBYTES, "cache_type": "readahead"}
        with self._stop_on_failure() as (fs, path), fs.open(path, **how) as file:
            if not file.seekable():
                raise BeyondClsError(f"{self} cannot be read in parts; {IN_PARTS}")
            return work(file)

    def read(self, offset: int, nbytes: int) -> bytes:
        """`nbytes` bytes from an offset on.

        Raises:
            BeyondClsError: the service does not return these bytes.
        """
        data = bytes(self._request("cat_file", start=offset, end=offset + nbytes))
        if len(data) != nbytes:
            raise BeyondClsError(f"{self} returned {len(data)} bytes for the {nbytes} from {offset}; {IN_PARTS}")
        return data

    @cached_property
    def _file_system_and_path(self) -> tuple[Any, str]:
        import fsspec  # type: ignore[import-untyped]

        try:
            return fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:  # a protocol that is unknown, or whose package is not installed
            raise BeyondClsError(f"{self} cannot be opened: {error}") from error

    def _request(self, method: str, path: str | None = None, **arguments: Any) -> Any:
        with self._stop_on_failure() as (fs, own_path):
            ask = partial(getattr(fs, method), own_path if path is None else path, **arguments)
            return try_patiently(ask) if method == "cat_file" else ask()  # as long as a run has not begun, an error is no loss

    @contextmanager
    def _stop_on_failure(self) -> Iterator[tuple[Any, str]]:
        """The file system, and the path in it; the run stops where it fails, as the image may be sound."""
        try:
            yield self._file_system_and_path
        except BeyondClsError:
            raise
        except Exception as error:  # each service has its own errors
            reason = str(error).replace(self.url, str(self)) or type(error).__name__
            raise BeyondClsError(f"{self} cannot be read: {reason}; check the address, network and credentials") from error
