"""A place in an object store, or any other that fsspec reaches (s3://, gs://, memory://, …)."""

from collections.abc import Iterable
from typing import Any

from store.errors import StoreError
from store.places.parallel import map_parallel
from store.places.place import Place, ShardFile

PIECE_NBYTES = 8 << 20  # a request costs some milliseconds of waiting, and of work: longer ones hide that
REQUESTS = 16  # in flight: one connection alone is slow


class ObjectStore(Place):
    """Through fsspec. Files are listed once: a feature set does not change under its readers.

    Passing failures are retried by the file system behind fsspec (s3fs: five times).
    """

    piece_nbytes, block_nbytes, requests = PIECE_NBYTES, PIECE_NBYTES, REQUESTS

    def __init__(self, url: str):
        import fsspec  # type: ignore[import-untyped]

        self.url = url.rstrip("/")
        try:
            self._fs, root = fsspec.core.url_to_fs(self.url, **_options(self.url))
        except (ImportError, ValueError) as error:
            raise StoreError(f"{url} cannot be opened: {error}") from error
        self._root = root.rstrip("/")
        self._sizes: dict[str, int] | None = None  # sizes of the files that can be read
        self._expected: dict[str, bytes] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_expected": {}}

    def address(self, name: str = "") -> str:
        return f"{self.url}/{name}" if name else self.url

    @property
    def _listed(self) -> dict[str, int]:
        if self._sizes is None:
            self._sizes = self.sizes()
        return self._sizes

    def content(self, name: str) -> bytes | None:
        if name in self._expected:
            return self._expected[name]
        return self.range(name, 0, self._listed[name]) if name in self._listed else None

    def expect(self, names: Iterable[str]) -> None:
        """Fetched together, and kept: one after the other they would take seconds."""
        new = sorted({name for name in names if name in self._listed} - self._expected.keys())
        contents = map_parallel(lambda name: self.range(name, 0, self._listed[name]), new, self.requests)
        self._expected.update(zip(new, contents, strict=True))

    def size(self, name: str) -> int | None:
        return self._listed.get(name)

    def has_folder(self, name: str) -> bool:
        return any(file.startswith(f"{name}/") for file in self._listed)

    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        if name not in self._listed:
            raise StoreError(f"{self.address(name)} cannot be opened (it is missing); push or extract it again")
        return _StoredShard(self, name)

    def range(self, name: str, start: int, stop: int) -> bytes:
        """All of these bytes.

        Raises:
            StoreError: the service does not return them, or returns fewer.
        """
        if stop <= start:
            return b""
        try:
            data = self._fs.cat_file(f"{self._root}/{name}", start=start, end=stop)
        except Exception as error:  # each service has its own errors
            reason = str(error) or type(error).__name__
            raise StoreError(f"{self.address(name)} cannot be read: {reason}; check the network and run this again") from error
        if len(data) != stop - start:
            raise StoreError(
                f"{self.address(name)} returned {len(data)} bytes, expected {stop - start} (from byte {start} on): it was cut "
                "or replaced, or the connection was lost; run this again, or push or extract it again"
            )
        return data

    def sizes(self) -> dict[str, int]:
        try:
            self._fs.invalidate_cache()  # others write too
            listed = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return {}
        except Exception as error:  # each service has its own errors
            raise self._listing_error(error) from error
        prefix = len(self._root.lstrip("/")) + 1
        return {name.lstrip("/")[prefix:]: entry["size"] for name, entry in listed.items()}

    def names(self) -> list[str]:
        try:
            self._fs.invalidate_cache()  # others write too
            listed = self._fs.ls(self._root, detail=False)
        except (FileNotFoundError, PermissionError):  # some accounts may list only what is further below
            return []
        except Exception as error:  # each service has its own errors
            raise self._listing_error(error) from error
        return sorted(name.rstrip("/").rsplit("/", 1)[-1] for name in listed)

    def put(self, name: str, parts: Iterable[memoryview | bytes], nbytes: int) -> None:
        content = bytearray(nbytes)  # in one request: a stream that is cut short could be taken for a file
        filled = 0
        for part in parts:
            content[filled : filled + len(part)] = part
            filled += len(part)
        assert filled == len(content) == nbytes, (name, filled, nbytes)
        try:
            self._fs.pipe_file(f"{self._root}/{name}", bytes(content) if nbytes < (1 << 20) else content)
        except Exception as error:  # each service has its own errors
            raise StoreError(
                f"{self.address(name)} cannot be written: {error}; check the network, your credentials and the right to write, "
                "and give the command again: it goes on where it was"
            ) from error

    def _listing_error(self, error: Exception) -> StoreError:
        return StoreError(f"{self.url} cannot be listed: {error}; check the address, the network and your credentials")


class _StoredShard(ShardFile):
    def __init__(self, place: ObjectStore, name: str):
        self._place, self._name = place, name

    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        return memoryview(self._place.range(self._name, offset, offset + nbytes))


def _options(url: str) -> dict[str, Any]:
    """As many connections as there are requests; s3fs has ten, and the user's configuration has precedence."""
    import fsspec

    if url.partition("://")[0] not in ("s3", "s3a"):
        return {}
    configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {"max_pool_connections": REQUESTS, **configured}}
