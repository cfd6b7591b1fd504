"""What was read from an object store, kept on this machine's disk, up to a number of bytes."""

import contextlib
import errno
import os
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Lock

import xxhash

from store.errors import StoreError
from store.places.aligned import ALIGNMENT, scratch
from store.places.disk import PARTIAL
from store.places.ledger import Hold, Ledger
from store.places.local import LocalShard

DIGEST_NBYTES = 16  # XXH3-128
PIECE_NBYTES = 1 << 17  # bytes of a block that share a digest; else a shuffled epoch would read whole blocks for a few rows


class DiskCache:
    """Blocks of shard files, in FOLDER/SET/, bounded over all sets and processes that use the folder.

    A set's name is made of its key and its digest, so nothing stale is read. Sets that no process has open are evicted, those
    used longest ago first. Nothing of a set in use is evicted: it is read again and again from end to end, so any block would
    be needed again soon. What does not fit is read past the cache.

    Nobody waits for the disk, so a power cut may leave anything: a block is followed by XXH3-128 digests of its pieces, then by
    the digest of these. A process compares each piece when it first reads it; a damaged block is fetched again.

    All changes are made under one lock, and a block's bytes are counted before they are written: the bound holds at all times.

    Args:
        folder: made if it is missing.
        nbytes: most bytes of all blocks together.

    Raises:
        StoreError: `nbytes` is not positive, or the folder cannot be used.
    """

    def __init__(self, folder: Path, nbytes: int):
        if nbytes <= 0:
            raise StoreError(f"a disk cache of {nbytes} bytes is asked for, expected more than 0; or give no cache")
        self.folder, self.nbytes = Path(folder).absolute(), nbytes
        self._stopped = False  # the disk is full, or not writable
        self._opened: dict[Path, tuple[bytes, bytearray]] = {}  # digests of a block, and 1 for each that was compared
        self._fetches: dict[Path, Future[memoryview | None]] = {}
        self._mutex = Lock()
        try:
            self._ledger = Ledger(self.folder, nbytes)
        except OSError as error:
            raise StoreError(
                f"{folder} cannot be used as a disk cache ({error.strerror}); give another folder, or no cache"
            ) from error

    def __reduce__(self) -> tuple[type["DiskCache"], tuple[Path, int]]:
        return DiskCache, (self.folder, self.nbytes)

    def hold(self, name: str) -> "Hold":
        """Mark a set as in use, as long as the returned object lives.

        Raises:
            StoreError: the folder cannot be used.
        """
        try:
            with self._ledger.locked():
                return Hold(self.folder / name)
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be used as a disk cache ({error.strerror}); give another folder") from error

    def read(self, path: Path, nbytes: int, start: int, stop: int, into: memoryview, direct: bool | None) -> bool:
        """Bytes `start` to `stop` of a cached block (of `nbytes`), to their place; false if it is not cached, or damaged.

        Args:
            into: page-aligned, longer by 2 · ALIGNMENT than needed; the bytes go to `start` % ALIGNMENT.
        """
        offset = start % ALIGNMENT
        opened = self._opened.get(path)
        try:
            digests, compared = opened or self._open(path, nbytes)
            first, last = start // PIECE_NBYTES, -(-stop // PIECE_NBYTES)
            if all(compared[first:last]):
                if len(_read(path, start, stop - start, into, direct)) == stop - start:
                    return True
            else:
                begin, end = first * PIECE_NBYTES, min(last * PIECE_NBYTES, nbytes)
                pieces = _read(path, begin, end - begin, scratch(end - begin + 2 * ALIGNMENT, "block"), direct)
                if len(pieces) == end - begin and _digests(pieces) == digests[DIGEST_NBYTES * first : DIGEST_NBYTES * last]:
                    into[offset : offset + stop - start] = pieces[start - begin : stop - begin]
                    compared[first:last] = bytes([1]) * (last - first)
                    return True
            self._drop(path)
        except FileNotFoundError:
            if opened is not None:  # it was evicted; else another thread may be fetching it right now
                self._opened.pop(path, None)
        except (OSError, StoreError):  # it is damaged, or the disk fails
            self._drop(path)
        return False

    def _open(self, path: Path, nbytes: int) -> tuple[bytes, bytearray]:
        """The digests of a cached block, none of them compared.

        Raises:
            StoreError: it is damaged.
        """
        with path.open("rb", buffering=0) as file:
            file.seek(nbytes)
            tail = file.read(_tail_nbytes(nbytes) + 1) or b""
        digests = tail[:-DIGEST_NBYTES]
        if len(tail) != _tail_nbytes(nbytes) or xxhash.xxh3_128_digest(digests) != tail[-DIGEST_NBYTES:]:
            raise StoreError(f"{path} is damaged")
        return self._opened.setdefault(path, (digests, bytearray(len(digests) // DIGEST_NBYTES)))

    def fetch(self, path: Path, nbytes: int, get: Callable[[], memoryview]) -> memoryview | None:
        """A block that is not cached: `get` it and keep it; None if there is no room for it. Threads share one `get`."""
        with self._mutex:
            future, is_ours = self._fetches.get(path), False
            if future is None:
                future, is_ours = self._fetches.setdefault(path, Future()), True
        if not is_ours:
            return future.result()
        try:
            data = None
            if path in self._opened:  # fetched by another thread, in the meantime
                data = memoryview(path.read_bytes())[:nbytes]
            elif (partial := self._reserve(path, nbytes + _tail_nbytes(nbytes))) is not None:
                data = self._fill(path, partial, get)
            future.set_result(data)
            return data
        except OSError:
            future.set_result(None)
            return None
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._mutex:
                del self._fetches[path]

    def _reserve(self, path: Path, nbytes: int) -> int | None:
        """A descriptor of the block's partial file, which has its size already and is locked; None if it cannot be had."""
        if self._stopped:
            return None
        partial = path.with_name(path.name + PARTIAL)
        try:
            with self._ledger.locked():
                return None if path.exists() else self._ledger.reserve(partial, nbytes)
        except OSError as error:
            self._stop(error)
            return None

    def _fill(self, path: Path, partial: int, get: Callable[[], memoryview]) -> memoryview:
        """Write a block where room was made for it, all or nothing."""
        partial_path, written = path.with_name(path.name + PARTIAL), False
        try:
            data = get()
            try:
                digests = _digests(data)
                for part in (data, memoryview(digests + xxhash.xxh3_128_digest(digests))):
                    while len(part):
                        part = part[os.write(partial, part) :]
                with self._ledger.locked():
                    os.replace(partial_path, path)
                self._opened[path] = digests, bytearray([1]) * (len(digests) // DIGEST_NBYTES)
                written = True
            except OSError as error:
                self._stop(error)
            return data
        finally:
            os.close(partial)
            if not written:
                with contextlib.suppress(OSError), self._ledger.locked():
                    self._ledger.remove(partial_path)

    def _stop(self, error: OSError) -> None:
        """Go on reading, but keep no more blocks."""
        if not self._stopped:
            self._stopped = True
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free some space, or give it fewer bytes" if full else "see who may write there"
            warnings.warn(
                f"the disk cache {self.folder} keeps nothing more ({error.strerror}); reading goes on. {remedy.capitalize()}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _drop(self, path: Path) -> None:
        self._opened.pop(path, None)
        with contextlib.suppress(OSError), self._ledger.locked():
            self._ledger.remove(path)


def _read(path: Path, offset: int, nbytes: int, into: memoryview, direct: bool | None) -> memoryview:
    """As `LocalShard.read`, but the first byte always goes to `offset` % ALIGNMENT."""
    file = LocalShard(path, direct)
    return file.read(offset, nbytes, into if file.direct else into[offset % ALIGNMENT :])


def _digests(data: memoryview) -> bytes:
    """XXH3-128 of each piece."""
    return b"".join(xxhash.xxh3_128_digest(data[i : i + PIECE_NBYTES]) for i in range(0, len(data), PIECE_NBYTES))


def _tail_nbytes(nbytes: int) -> int:
    """Bytes of the digests after a block."""
    return DIGEST_NBYTES * (-(-nbytes // PIECE_NBYTES) + 1)
