"""A file that fsspec reaches (s3://, https://, gs://, memory://, …), as far as it resembles a Path."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import IO, Any, TypeVar

from extract.datasets.reading import tried
from store import BeyondClsError

T = TypeVar("T")
BLOCK_NBYTES = 8 << 20  # read ahead: a tar is indexed from end to end
IN_PARTS = "copy it here first, or give it as 'pipe:curl -fsSL URL'"


@dataclass(frozen=True)
class RemoteFile:
    """`url` may hold credentials or a signature; messages show it without them."""

    url: str

    def __str__(self) -> str:
        return re.sub(r"//[^/@]*@", "//", self._base)

    @property
    def _base(self) -> str:
        """The address without a query, which other protocols than HTTP do not have."""
        return self.url.partition("?")[0] if self.url.startswith("http") else self.url

    @property
    def name(self) -> str:
        return self._base.rpartition("/")[2]

    @property
    def parent(self) -> "RemoteFile":
        return RemoteFile(self._base.rpartition("/")[0])

    def __truediv__(self, name: str) -> "RemoteFile":
        return RemoteFile(f"{self._base.rstrip('/')}/{name}")

    def is_file(self) -> bool:
        """Whether there is such a file; BeyondClsError if the service does not answer."""
        with self._asking() as (fs, path):
            try:
                return bool(fs.info(path)["type"] == "file")
            except FileNotFoundError:
                return False

    def is_dir(self) -> bool:
        """Whether it is a folder that can be listed; over HTTP, nothing is."""
        return not self.url.startswith("http") and self._ask("isdir")

    def exists(self) -> bool:
        """False also where one may not look."""
        return self._ask("exists")

    def glob(self, pattern: str = "") -> list["RemoteFile"]:
        """Files in this folder that match `pattern`, or those that match this path itself, in alphabetical order."""
        fs, path = self._place
        names = self._ask("glob", f"{path.rstrip('/')}/{pattern}" if pattern else path)
        return [RemoteFile(fs.unstrip_protocol(name)) for name in sorted(names)]

    def read_text(self) -> str:
        return bytes(self._ask("cat_file")).decode()

    def read_with(self, work: Callable[[IO[bytes]], T]) -> T:
        """The result of `work` on the file, read from end to end, with seeking; BeyondClsError as `read`."""
        how = {"mode": "rb", "block_size": BLOCK_NBYTES, "cache_type": "readahead"}
        with self._asking() as (fs, path), fs.open(path, **how) as file:
            if not file.seekable():
                raise BeyondClsError(f"{self} cannot be read in parts; {IN_PARTS}")
            return work(file)

    def read(self, offset: int, nbytes: int) -> bytes:
        """`nbytes` bytes from an offset on.

        Raises:
            BeyondClsError: the service does not return these bytes.
        """
        data = bytes(self._ask("cat_file", start=offset, end=offset + nbytes))
        if len(data) != nbytes:
            raise BeyondClsError(f"{self} returned {len(data)} bytes for the {nbytes} from {offset}; {IN_PARTS}")
        return data

    @cached_property
    def _place(self) -> tuple[Any, str]:
        import fsspec  # type: ignore[import-untyped]

        try:
            return fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:  # a protocol that is unknown, or whose package is not installed
            raise BeyondClsError(f"{self} cannot be opened: {error}") from error

    def _ask(self, method: str, path: str | None = None, **arguments: Any) -> Any:
        with self._asking() as (fs, own_path):
            ask = partial(getattr(fs, method), own_path if path is None else path, **arguments)
            return tried(ask) if method == "cat_file" else ask()  # as long as a run has not begun, an error is no loss

    @contextmanager
    def _asking(self) -> Iterator[tuple[Any, str]]:
        """The file system, and the path in it; the run stops where it fails, as the image may be sound."""
        try:
            yield self._place
        except BeyondClsError:
            raise
        except Exception as error:  # each service has its own errors
            reason = str(error).replace(self.url, str(self)) or type(error).__name__
            raise BeyondClsError(
                f"{self} cannot be read: {reason}; check the address, the network and your credentials, and run again"
            ) from error
