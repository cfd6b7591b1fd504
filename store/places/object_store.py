"""A place in an object store, or any other that fsspec reaches (s3://, gs://, memory://, …)."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import xxhash

from store.errors import StoreError
from store.places.cache import CachedSet, CachedShard, DiskCache
from store.places.place import Place, ShardFile, map_parallel
from store.places.s3 import S3Ranges

PIECE_NBYTES = 8 << 20  # a request costs some milliseconds of waiting, and of work: longer ones hide that
REQUESTS = 16  # in flight: one connection alone is slow
# How fsspec is asked, by protocol, for a file where there is none, as one step of the service: `If-None-Match: *` for S3 and
# Azure, generation 0 for Google. Elsewhere it looks first and then writes, which two writers can do at once.
CONDITION: dict[str, dict[str, Any]] = {
    **{protocol: {"mode": "create"} for protocol in ("s3", "s3a", "gs", "gcs", "memory")},
    **{protocol: {"overwrite": False} for protocol in ("az", "abfs", "abfss")},
}
# How s3fs sends what is larger than two parts: several at a time, each of which is copied; its own are 10 of 50 MiB.
PARTS: dict[str, Any] = {"chunksize": 16 << 20, "max_concurrency": 8}
CONFLICT, EXISTS = 409, 412  # HTTP: another conditional write of this name is under way; there is a file of this name
AT_ONCE = 8  # files on their way; one connection does not fill a network
MEMORY = 1 << 30  # bytes of files on their way, each of which is copied, and once more in parts; one that is larger goes alone
SMALL_NBYTES = 64 << 20  # more than any file has that describes others
TRIES = 6  # of a write that meets another, after 0.1 s, 0.2 s, 0.4 s, …
# What fsspec would open, but feature sets are not in: why, by protocol.
_SERVER, _FILES = (
    "web servers neither list files with their sizes nor keep new ones",
    "this machine's files are named by their paths",
)
REFUSED = {
    "pipe": "no command is run",
    **dict.fromkeys(("http", "https"), _SERVER),
    **dict.fromkeys(("file", "local", "reference", "git", "data"), _FILES),
}
BUCKETS = ("s3", "s3a", "gs", "gcs")
TIMES = ("LastModified", "last_modified", "mtime", "modified", "updated", "created")  # names that services use
_READ, _LIST = "check the network and run this again", "check the address, the network and your credentials"
_WRITE = "check the network, your credentials and the right to write, and give the command again: it goes on where it was"


class ObjectStore(Place):
    """Through fsspec; written as a `LocalFolder` is. Files are listed once: a feature set does not change under its readers.

    Passing failures are retried by the file system behind fsspec (s3fs: five times). Of S3, ranges are read through obstore.

    Raises:
        StoreError: a protocol that is unknown, whose package is not installed, or which is refused; or a chain (`::`).
    """

    piece_nbytes, requests = PIECE_NBYTES, REQUESTS
    block_nbytes: int | None = PIECE_NBYTES

    def __init__(self, url: str):
        import fsspec  # type: ignore[import-untyped]

        self.url = url.rstrip("/")
        self._protocol = self.url.partition("://")[0]
        why = "chains (::) are not followed" if "::" in url else REFUSED.get(self._protocol.partition(":")[0].lower())
        if self._protocol in BUCKETS and "@" in url.split("/")[2]:
            why = "a bucket has no user or password; the service's own configuration holds them"
        if why:
            raise StoreError(
                f"{url} is no place of feature sets: {why}; name a folder, or an address such as s3://bucket/features"
            )
        is_s3 = self._protocol in ("s3", "s3a")
        try:
            options: dict[str, Any] = {}
            if is_s3:  # as many connections as requests, not ten; the user's configuration comes first
                configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
                options = {"config_kwargs": {"max_pool_connections": REQUESTS, **configured}}
            self._fs, root = fsspec.core.url_to_fs(self.url, **options)
        except (ImportError, ValueError) as error:
            raise StoreError(f"{url} cannot be opened: {error}") from error
        self._root, self._in_parts = root.rstrip("/"), PARTS if is_s3 else {}
        self._ranges = S3Ranges(self._fs, self._root) if is_s3 else None
        self._sizes: dict[str, int] | None = None  # as listed for readers
        self._expected: dict[str, bytes] = {}
        self.cached: CachedSet | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_expected": {}}

    def address(self, name: str = "") -> str:
        return f"{self.url}/{name}" if name else self.url

    def _content(self, parts: Iterable[memoryview | bytes], nbytes: int) -> bytes | bytearray:
        """All of a file, for one request (or one upload in parts): a stream that is cut short could be taken for a file."""
        content = bytearray(nbytes)
        filled = 0
        for part in parts:
            content[filled : filled + len(part)] = part
            filled += len(part)
        assert filled == len(content) == nbytes, (filled, nbytes)
        # Azure's client takes a bytearray for an iterator over numbers; S3's alone is known to take one, which saves a copy.
        return content if self._in_parts and nbytes >= (1 << 20) else bytes(content)

    @property
    def _listed(self) -> dict[str, int]:
        if self._sizes is None:
            self._sizes = self.sizes()
        return self._sizes

    def content(self, name: str) -> bytes | None:
        if name in self._expected:
            return self._expected[name]
        return bytes(self.range(name, 0, self._listed[name])) if name in self._listed else None

    def expect(self, names: Iterable[str]) -> None:
        """Fetched together, and kept: one after the other they would take seconds."""
        new = sorted({name for name in names if name in self._listed} - self._expected.keys())
        contents = map_parallel(lambda name: bytes(self.range(name, 0, self._listed[name])), new, self.requests)
        self._expected.update(zip(new, contents, strict=True))

    def size(self, name: str) -> int | None:
        return self._listed.get(name)

    def has_folder(self, name: str) -> bool:
        return any(file.startswith(f"{name}/") for file in self._listed)

    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        if self._sizes is not None and name not in self._sizes and self.size_now(name) is None:
            raise StoreError(f"{self.address(name)} cannot be opened (it is missing); push or extract it again")
        shard = _StoredShard(self, name)
        return shard if self.cached is None else CachedShard(self.cached, self, name, shard, direct)

    def drop_copy(self, name: str) -> bool:
        return self.cached is not None and self.cached.drop(name)

    def keep_in(self, cache: DiskCache, key: str, digest: str) -> None:
        """Read the feature set of this key and digest, which is here, through a cache from now on."""
        # A shuffled epoch need not keep more rows together than when it reads a disk.
        self.cached, self.block_nbytes = CachedSet(cache, xxhash.xxh3_128_hexdigest(f"{key} {digest}".encode())), None

    def range(self, name: str, start: int, stop: int) -> memoryview:
        """All of these bytes."""
        if stop <= start:
            return memoryview(b"")
        with _explained(f"{self.address(name)} cannot be read", _READ):
            if self._ranges is not None:
                data = self._ranges.read(name, start, stop)
            else:
                data = memoryview(self._fs.cat_file(f"{self._root}/{name}", start=start, end=stop))
        if len(data) != stop - start:
            raise StoreError(
                f"{self.address(name)} returned {len(data)} bytes, expected {stop - start} (from byte {start} on): it was cut "
                "or replaced, or the connection was lost; run this again, or push or extract it again"
            )
        return data

    def sizes(self) -> dict[str, int]:
        return {name: entry["size"] for name, entry in self._find().items()}

    def times(self, folder: str = "") -> dict[str, datetime | None]:
        return {name: written_at(entry) for name, entry in self._find(folder).items()}

    def _find(self, folder: str = "") -> dict[str, dict[str, Any]]:
        """What the service lists now below a folder, by path."""
        listed: dict[str, dict[str, Any]] = {}
        with _explained(f"{self.url} cannot be listed", _LIST), suppress(FileNotFoundError):
            self._fs.invalidate_cache()  # others write too
            listed = self._fs.find(f"{self._root}/{folder}" if folder else self._root, detail=True)
        prefix = len(self._root.lstrip("/")) + 1
        # s3fs may give the folder itself, if its first file comes between two of its requests.
        return {name.lstrip("/")[prefix:]: entry for name, entry in listed.items() if entry.get("type") != "directory"}

    def size_now(self, name: str) -> int | None:
        return self._entry(name).get("size")

    def time_now(self, name: str) -> datetime | None:
        return written_at(self._entry(name))

    def _entry(self, name: str) -> dict[str, Any]:
        """What the service says now of a file; empty if there is none."""
        with _explained(f"{self.url} cannot be listed", _LIST), suppress(FileNotFoundError):
            return self._fs.info(f"{self._root}/{name}", refresh=True)
        return {}

    def content_now(self, name: str) -> bytes | None:
        with _explained(f"{self.address(name)} cannot be read", _READ), suppress(FileNotFoundError):
            return self._fs.cat_file(f"{self._root}/{name}", start=0, end=SMALL_NBYTES)  # one request; of all of it, three
        return None

    def names(self) -> list[str]:
        listed: list[str] = []
        # Some accounts may list only what is further below.
        with _explained(f"{self.url} cannot be listed", _LIST), suppress(FileNotFoundError, PermissionError):
            self._fs.invalidate_cache()  # others write too
            listed = self._fs.ls(self._root, detail=False)
        return sorted(name.rstrip("/").rsplit("/", 1)[-1] for name in listed)

    def put(self, name: str, parts: Iterable[memoryview | bytes], nbytes: int) -> None:
        with _explained(f"{self.address(name)} cannot be written", _WRITE):
            self._fs.pipe_file(f"{self._root}/{name}", self._content(parts, nbytes), **self._in_parts)

    @property
    def can_create(self) -> bool:
        """Whether fsspec has a way to ask this kind of service for what `create` promises; the service may still ignore it."""
        return self._protocol in CONDITION

    def create(self, name: str, parts: Iterable[memoryview | bytes], nbytes: int) -> bool:
        content = self._content(parts, nbytes)
        for attempt in range(TRIES):
            try:
                self._fs.pipe_file(f"{self._root}/{name}", content, **CONDITION[self._protocol], **self._in_parts)
                return True
            except FileExistsError:
                return False
            except Exception as error:  # each service has its own errors
                if (status := _status(error)) == EXISTS:
                    return False
                if status != CONFLICT or attempt == TRIES - 1:
                    raise StoreError(f"{self.address(name)} cannot be written: {error}; {_WRITE}") from error
            time.sleep(0.1 * 2**attempt)
        raise AssertionError("the last try returns or raises")

    def remove(self, names: Sequence[str]) -> None:
        """In one request where the service can."""
        if names:
            with _explained(f"{self.address(names[0])} cannot be removed", "check your right to"), suppress(FileNotFoundError):
                self._fs.rm([f"{self._root}/{name}" for name in names])

    def touch(self, name: str, content: bytes) -> None:
        self.put(name, [content], len(content))

    def writers(self, nbytes: int) -> int:
        return max(1, min(AT_ONCE, MEMORY // nbytes))


@contextmanager
def _explained(failure: str, remedy: str) -> Iterator[None]:
    """Turn errors into messages; each service has its own."""
    try:
        yield
    except Exception as error:
        raise StoreError(f"{failure}: {str(error) or type(error).__name__}; {remedy}") from error


def honours_condition(place: ObjectStore, name: str) -> bool:
    """Whether a service refuses to write a file where there is one. It is asked to write `name` twice; that is removed."""
    try:
        return not (place.create(name, [b"1"], 1) and place.create(name, [b"2"], 1))
    finally:
        place.remove([name])


class _StoredShard(ShardFile):
    def __init__(self, place: ObjectStore, name: str):
        self._place, self._name = place, name

    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        return self._place.range(self._name, offset, offset + nbytes)


def _status(error: BaseException) -> int | None:
    """The HTTP status of a service's answer, as botocore keeps it in an error or in its cause; None without one."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    try:
        return response["ResponseMetadata"]["HTTPStatusCode"]  # type: ignore[index]
    except (KeyError, TypeError):
        return None


def written_at(entry: Mapping[str, Any]) -> datetime | None:
    """The time in what a service says of a file, in any form that services use; None without one."""
    for value in map(entry.get, TIMES):
        if isinstance(value, float):
            value = datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
    return None
