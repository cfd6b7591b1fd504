"""Where copies of feature sets are written: a folder, or any place that fsspec reaches."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

from store.disk import PARTIAL, write_file
from store.errors import StoreError


def is_remote(address: str) -> bool:
    """Whether an address is not of this machine's file systems."""
    return "://" in address and not address.startswith("file://")


class Copies(ABC):
    """Files below one place. Each appears there whole, or not at all."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Bytes of each file that is there, by its path."""

    @abstractmethod
    def names(self) -> list[str]:
        """Of what lies directly below, sorted; none where there is nothing, or where it may not be listed.

        Raises:
            StoreError: the service does not answer.
        """

    @abstractmethod
    def put(self, name: str, parts: Iterable[memoryview | bytes], nbytes: int) -> None:
        """Write a file of so many bytes, its parts one behind the other.

        Raises:
            StoreError: it cannot be written.
        """


def copies_at(address: str) -> Copies:
    """Copies in a folder or in an object store, as the address says.

    Raises:
        StoreError: a protocol that is unknown, or whose package is not installed.
    """
    return _ObjectStore(address) if is_remote(address) else _Folder(Path(address.removeprefix("file://")))


class _Folder(Copies):
    def __init__(self, folder: Path):
        self.folder = folder

    def sizes(self) -> dict[str, int]:
        files = (file for file in self.folder.rglob("*") if file.is_file())
        return {
            file.relative_to(self.folder).as_posix(): file.stat().st_size for file in files if not file.name.endswith(PARTIAL)
        }

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.folder))
        except OSError:
            return []

    def put(self, name: str, parts: Iterable[memoryview | bytes], nbytes: int) -> None:
        try:
            write_file(self.folder / name, parts)
        except OSError as error:
            raise StoreError(
                f"{self.folder / name} cannot be written ({error.strerror}); free some space or get the right to write there, "
                "and give the command again: it goes on where it was"
            ) from error


class _ObjectStore(Copies):
    def __init__(self, url: str):
        import fsspec  # type: ignore[import-untyped]

        self.url = url.rstrip("/")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise StoreError(f"{url} cannot be opened: {error}") from error

    def sizes(self) -> dict[str, int]:
        try:
            self._fs.invalidate_cache()  # others write too
            listed = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return {}
        except Exception as error:  # each service has its own errors
            raise self._cannot_be_listed(error) from error
        prefix = len(self._root.strip("/")) + 1
        return {name.lstrip("/")[prefix:]: entry["size"] for name, entry in listed.items()}

    def names(self) -> list[str]:
        try:
            self._fs.invalidate_cache()  # others write too
            listed = self._fs.ls(self._root, detail=False)
        except (FileNotFoundError, PermissionError):  # some may list only what lies below
            return []
        except Exception as error:  # each service has its own errors
            raise self._cannot_be_listed(error) from error
        return sorted(name.rstrip("/").rsplit("/", 1)[-1] for name in listed)

    def put(self, name: str, parts: Iterable[memoryview | bytes], nbytes: int) -> None:
        content = bytearray(nbytes)  # at once: what is cut short while it is streamed could be taken for a file
        filled = 0
        for part in parts:
            content[filled : filled + len(part)] = part
            filled += len(part)
        assert filled == len(content) == nbytes, (name, filled, nbytes)
        try:
            self._fs.pipe_file(f"{self._root}/{name}", bytes(content) if nbytes < (1 << 20) else content)
        except Exception as error:  # each service has its own errors
            raise StoreError(
                f"{self.url}/{name} cannot be written: {error}; check the network, your credentials and the right to write, "
                "and give the command again: it goes on where it was"
            ) from error

    def _cannot_be_listed(self, error: Exception) -> StoreError:
        return StoreError(f"{self.url} cannot be listed: {error}; check the address, the network and your credentials")
