"""A feature set in an object store, or any place that fsspec reaches (s3://, gs://, memory://, …)."""

from collections.abc import Iterable
from typing import Any

from store.errors import StoreError
from store.folder import Folder, ShardFile
from store.parallel import each

PIECE_NBYTES = 8 << 20  # a request costs some milliseconds of waiting, and of work: longer ones hide that
REQUESTS = 16  # in flight: one connection alone is slow


class Remote(Folder):
    """Through fsspec. Listed once: a feature set does not change under its readers.

    What fails in passing is tried again by the file system behind fsspec (s3fs: five times).
    """

    piece_nbytes, block_nbytes, requests = PIECE_NBYTES, PIECE_NBYTES, REQUESTS

    def __init__(self, url: str):
        import fsspec  # type: ignore[import-untyped]

        self.url = url.rstrip("/")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url, **_options(self.url))
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
        self._expected: dict[str, bytes] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_expected": {}}

    def path(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def content(self, name: str) -> bytes | None:
        if name in self._expected:
            return self._expected[name]
        return self.range(name, 0, self._sizes[name]) if name in self._sizes else None

    def expect(self, names: Iterable[str]) -> None:
        """Fetched at once, and kept: one after the other they would take seconds."""
        there = sorted({name for name in names if name in self._sizes} - self._expected.keys())
        found = each(lambda name: self.range(name, 0, self._sizes[name]), there, self.requests)
        self._expected.update(zip(there, found, strict=True))

    def size(self, name: str) -> int | None:
        return self._sizes.get(name)

    def has_folder(self, name: str) -> bool:
        return any(other.startswith(f"{name}/") for other in self._sizes)

    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        if name not in self._sizes:
            raise StoreError(f"{self.path(name)} cannot be opened (it is missing); push or extract it again")
        return _RemoteShard(self, name)

    def range(self, name: str, start: int, stop: int) -> bytes:
        """All of these bytes.

        Raises:
            StoreError: the service does not give them, or gives fewer.
        """
        if stop <= start:
            return b""
        try:
            data = self._fs.cat_file(f"{self._root}/{name}", start=start, end=stop)
        except Exception as error:  # each service has its own errors
            reason = str(error) or type(error).__name__
            raise StoreError(f"{self.path(name)} cannot be read: {reason}; check the network and run this again") from error
        if len(data) != stop - start:
            raise StoreError(
                f"{self.path(name)} gave {len(data)} bytes, expected {stop - start} (from byte {start} on): it was cut or "
                "replaced, or the connection was lost; run this again, or push or extract it again"
            )
        return data


class _RemoteShard(ShardFile):
    def __init__(self, folder: Remote, name: str):
        self._folder, self._name = folder, name

    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        return memoryview(self._folder.range(self._name, offset, offset + nbytes))


def _options(url: str) -> dict[str, Any]:
    """As many connections as there are requests; s3fs has ten, and what the user configured goes first."""
    import fsspec

    if url.partition("://")[0] not in ("s3", "s3a"):
        return {}
    configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {"max_pool_connections": REQUESTS, **configured}}
