"""One array of a feature set, read row by row from its shard files (docs/store-format.md)."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import xxhash

from store.errors import StoreError
from store.format.layout import ATTRIBUTE, DIGEST_NBYTES, SCALE, ArrayLayout
from store.places.place import ALIGNMENT, PIECE_NBYTES, Place, ShardFile, aligned_memory, map_parallel, scratch

if TYPE_CHECKING:
    from store.codecs import Codec

Read = TypeVar("Read")
Verify = Literal["first", "always", "never"]
PLAIN = (None, "float16", "float32")  # codecs that need no decoding, and so no torch, whose import takes seconds
VERIFY = ("first", "always", "never")
BLOCK_ROWS = 32  # neighbours that a shuffled epoch keeps together when it reads a disk, at most
OPEN_SHARDS = 64  # kept open, of each array
READS_AT_ONCE = 4  # of rows that a disk gives at a time, where there is a MiB for each: three times as fast as one by one


class ArrayReader:
    """Rows of one array.

    Args:
        place: of the feature set.
        name: of the array, its path there.
        meta: its zarr.json.
        verify: compare what is read with its digest when it is first read by this process ("first"), each time, or never.

    Attributes:
        layout: of the stored array.
        shards: what its zarr.json says about each shard.
        shape, dtype: of the values that `rows` returns: float32 where numpy cannot hold what is stored.
        codec: decodes them; None for plain numbers.
        scale: the array of scales, for codecs that have one; `scale_shape` is the shape and dtype that it must have.

    Raises:
        StoreError: the metadata is not in this format.
    """

    def __init__(self, place: Place, name: str, meta: Mapping[str, Any], verify: Verify = "first"):
        self.name, self.place, self.verify = name, place, verify
        self.scale: ArrayReader | None = None
        file = place.address(f"{name}/zarr.json")
        try:
            self.layout = ArrayLayout.from_zarr(name, meta)
            self.shape, self.dtype, name_of_codec = self.layout.shape, np.dtype(self.layout.dtype), self.layout.codec
            self.codec: Codec | None = None
            self.scale_shape: tuple[tuple[int, ...], str] | None = None
            if name_of_codec not in PLAIN:
                from store.codecs import get_codec

                self.codec = get_codec(name_of_codec or "")
                self.shape, self.dtype = self.codec.shape(self.layout.shape), np.dtype("float32")
                self.scale_shape = self.codec.parts(self.shape).get(SCALE)
            if name_of_codec is not None and self.layout.dtype != (self.codec.zarr_dtype if self.codec else name_of_codec):
                raise ValueError(f"{name_of_codec} stored as {self.layout.dtype}")
            self.shards: list[dict[str, Any]] = meta["attributes"][ATTRIBUTE]["shards"]
            recorded = [(s["rows"], s["nbytes"]) for s in self.shards]
            has_digests = all(isinstance(s["xxh3_128"], str) for s in self.shards)
            n = min(self.layout.n_shards, len(recorded) + 1)
            expected = [(list(self.layout.rows(i)), self.layout.nbytes(i)) for i in range(n)]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError, OverflowError) as error:
            raise StoreError(
                f"{file} does not describe an array of this store ({error!r}); pull or extract it again"
            ) from error
        if recorded != expected or not has_digests:
            raise StoreError(f"{file}: rows or bytes of its shards do not fit its shape; pull or extract the feature set again")
        self._reset()

    def _reset(self) -> None:
        self._lock = Lock()
        self._open: OrderedDict[tuple[int, bool | None], ShardFile] = OrderedDict()
        self._direct: dict[int, bool | None] = {}  # whether a shard is read past the page cache, where that was left open
        self._digests: dict[int, bytes] = {}
        self._tail_locks: dict[int, Lock] = {}  # held while the tail of a shard is read
        self._compared: dict[int, bytearray] = {}  # 1 for each digest of a shard that was compared

    def __getstate__(self) -> dict[str, Any]:
        """Without open files: a reader can be sent to another process, which checks for itself."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __repr__(self) -> str:
        return f"ArrayReader({self.name!r}, {list(self.shape)}, {self.layout.codec or self.dtype})"

    @property
    def nbytes(self) -> int:
        """Bytes of the stored rows, scales included."""
        return self.layout.row_nbytes * self.shape[0] + (self.scale.nbytes if self.scale else 0)

    def all(self) -> np.ndarray:
        """The whole array."""
        return self.rows(np.arange(self.shape[0]))

    def rows(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Rows in the order of `indices`, [n, ...], decoded.

        Raises:
            StoreError: an index is out of range or not an integer, or bytes are not those that were written.
        """
        stored = self.stored(indices)
        if self.codec is None:
            return stored
        import torch

        parts = {"": torch.from_numpy(stored.view(np.uint8)).view(self.codec.stored)}
        if self.scale is not None:
            parts[SCALE] = torch.from_numpy(self.scale.stored(indices))
        return self.codec.decode(parts).numpy()

    def stored(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Rows as they are stored, in the order of `indices`; read in the order of the disk, neighbours at once.

        Raises:
            StoreError: as `rows`.
        """
        rows = row_numbers(indices, f"{self.name}: ")
        if rows.size and (rows.min() < 0 or rows.max() >= self.shape[0]):
            raise StoreError(f"{self.name}: rows {rows.min()} to {rows.max()} asked for, it has rows 0 to {self.shape[0] - 1}")
        values = np.empty((len(rows), *self.layout.shape[1:]), np.dtype(self.layout.dtype))
        flat = values.reshape(len(rows), -1).view(np.uint8) if len(rows) else values
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        runs = list(self.runs(ordered))
        requests = min(len(runs), max(self.place.requests, min(READS_AT_ONCE, values.nbytes // PIECE_NBYTES)))
        for _ in map_parallel(lambda run: self.read_run(ordered, order, run, flat), runs, requests):
            pass
        return values

    def read_run(
        self, rows: np.ndarray, places: np.ndarray, run: tuple[int, int], target: np.ndarray, direct: bool | None = False
    ) -> None:
        """Read stored rows of one of `runs`: row rows[i] (ascending) goes to target[places[i]], of [n, row_nbytes] uint8."""
        start, stop = run
        first, memory = int(rows[start]), scratch(self.scratch_nbytes(self.piece_rows))
        fetched = np.frombuffer(self.fetch(first, int(rows[stop - 1]) + 1, memory, direct), np.uint8)
        block = fetched.reshape(-1, self.layout.row_nbytes)
        target[places[start:stop]] = block if len(block) == stop - start else block[rows[start:stop] - first]

    @property
    def piece_rows(self) -> int:
        """Rows that are read at once: whole digests, about a MiB from a disk, more over a network."""
        return self._rows_in(self.place.piece_nbytes)

    @property
    def block_rows(self) -> int:
        """Neighbours that a shuffled epoch keeps together by default."""
        if self.place.block_nbytes is None:
            return min(self._rows_in(PIECE_NBYTES), BLOCK_ROWS)
        return self._rows_in(self.place.block_nbytes)

    def _rows_in(self, nbytes: int) -> int:
        checked = self.layout.checked_rows
        return max(1, nbytes // (checked * self.layout.row_nbytes)) * checked

    def scratch_nbytes(self, n_rows: int) -> int:
        """Memory that `fetch` needs for this many neighbouring rows."""
        return (n_rows + 2 * self.layout.checked_rows) * self.layout.row_nbytes + 2 * ALIGNMENT

    def runs(self, ordered: np.ndarray) -> Iterator[tuple[int, int]]:
        """Ranges of `ordered` (ascending rows) to read at once: neighbours in one shard, at most `piece_rows` rows.

        Where each read is a request, and where rows are shorter than a page, they count as neighbours if their digests are:
        what is between them is read anyway, to be compared. No row appears twice in such a range.
        """
        if not len(ordered):
            return
        piece, shard_rows = self.piece_rows, self.layout.shard_rows
        piece_of = ordered % shard_rows // piece + ordered // shard_rows * (shard_rows // piece + 1)
        apart = np.diff(ordered) > 1
        if self.place.requests > 1 or self.layout.row_nbytes < ALIGNMENT:
            apart = (np.diff(ordered // self.layout.checked_rows) > 1) | (np.diff(ordered) == 0)
        ends = np.flatnonzero(apart | (np.diff(piece_of) != 0)) + 1
        yield from pairwise([0, *ends.tolist(), len(ordered)])

    def fetch(self, start: int, stop: int, scratch: memoryview, direct: bool | None = False) -> memoryview:
        """Bytes of the rows start…stop - 1, of one shard; they are in `scratch` (of `scratch_nbytes`) or elsewhere.

        Raises:
            StoreError: they are not those that were written.
        """
        checked, nbytes = self.layout.checked_rows, self.layout.row_nbytes

        def read(shard: int, first: int, last: int) -> memoryview:
            file, unchecked = self._file_and_unchecked(shard, first, last, direct)
            # Whole pieces around what is wanted, as far as they are to be compared.
            begin = min(first, unchecked[0] * checked) if unchecked else first
            end = max(last, (unchecked[-1] + 1) * checked) if unchecked else last
            content = file.read(begin * nbytes, (end - begin) * nbytes, scratch)
            if len(content) != (end - begin) * nbytes:
                raise StoreError(f"{self._path(shard)} ended while it was read; pull or extract it again")
            for piece in unchecked:
                offset = (piece * checked - begin) * nbytes
                self._check_piece(shard, piece, xxhash.xxh3_128_digest(content[offset : offset + checked * nbytes]))
            return content[(first - begin) * nbytes : (last - begin) * nbytes]

        return self._read_past_copies(read, start, stop)

    def fetch_into(self, start: int, stop: int, views: list[memoryview], direct: bool | None = False) -> bool:
        """As `fetch`, each row straight into its own memory; False if that is not possible.

        Raises:
            StoreError: they are not those that were written.
        """
        checked = self.layout.checked_rows

        def read(shard: int, first: int, last: int) -> bool:
            file, unchecked = self._file_and_unchecked(shard, first, last, direct)
            if unchecked and (first % checked or last % checked):
                return False  # their digests cover other rows too
            if not file.read_into(first * self.layout.row_nbytes, views):
                return False
            for piece in unchecked:
                digest = xxhash.xxh3_128()
                for view in views[piece * checked - first : (piece + 1) * checked - first]:
                    digest.update(view)
                self._check_piece(shard, piece, digest.digest())
            return True

        return self._read_past_copies(read, start, stop)

    def compared_file(self, shard: int, direct: bool | None) -> ShardFile | None:
        """A shard's file, if it has been compared with its digests as a whole, so that anything may be read as it is."""
        compared = self._compared.get(shard)
        is_compared = self.verify == "never" or (self.verify != "always" and compared is not None and 0 not in compared)
        return self._open_shard(shard, direct) if is_compared else None

    def _read_past_copies(self, read: Callable[[int, int, int], Read], start: int, stop: int) -> Read:
        """What `read` gives of a shard's rows; if a copy of the shard was damaged, once more from the original."""
        shard = start // self.layout.shard_rows
        first, last = start - shard * self.layout.shard_rows, stop - shard * self.layout.shard_rows
        try:
            return read(shard, first, last)
        except StoreError:
            if not self.place.drop_copy(self.layout.file(shard)):
                raise
        with self._lock:
            for key in [key for key in self._open if key[0] == shard]:
                del self._open[key]
            self._compared.pop(shard, None)
        return read(shard, first, last)

    def _file_and_unchecked(self, shard: int, first: int, last: int, direct: bool | None) -> tuple[ShardFile, Sequence[int]]:
        """A shard's file, and which pieces of the rows first…last - 1 are to be compared with their digests."""
        file = self._open_shard(shard, direct)
        if self.verify == "never":
            return file, ()
        if (compared := self._compared.get(shard)) is None:
            with self._lock:
                tail_lock = self._tail_locks.setdefault(shard, Lock())
            with tail_lock:  # other threads wait for the first one: a tail is read once, when the shard is first touched
                if (compared := self._compared.get(shard)) is None:
                    self._digests[shard] = self.tail(shard, file)
                    compared = self._compared[shard] = bytearray(self.layout.n_digests(shard))
        pieces = range(first // self.layout.checked_rows, -(-last // self.layout.checked_rows))
        return file, pieces if self.verify == "always" else [i for i in pieces if not compared[i]]

    def _check_piece(self, shard: int, piece: int, digest: bytes) -> None:
        if digest != self._digests[shard][DIGEST_NBYTES * piece : DIGEST_NBYTES * (piece + 1)]:
            first = self.layout.rows(shard)[0] + piece * self.layout.checked_rows
            last = min(first + self.layout.checked_rows, self.layout.rows(shard)[1]) - 1
            raise self._damage_error(shard, f"rows {first} to {last}" if last >= first else "its padding")
        self._compared[shard][piece] = 1

    def _damage_error(self, shard: int, rows: str) -> StoreError:
        return StoreError(
            f"{self._path(shard)} is damaged ({rows}): its bytes do not have the digest that was recorded; "
            "pull it again, or extract it again as `beyondcls store verify` says"
        )

    def tail(self, shard: int, file: ShardFile) -> bytes:
        """A shard's digests and index, compared with what zarr.json says about them.

        Raises:
            StoreError: they are damaged.
        """
        tail = read_tail(file, self.layout, shard)
        if xxhash.xxh3_128_hexdigest(tail) != self.shards[shard]["xxh3_128"]:
            raise self._damage_error(shard, "its tail")
        return tail

    def problem(self, shard: int) -> str | None:
        """What is wrong with a shard as far as its size tells."""
        start, stop = self.layout.rows(shard)
        if (size := self.place.size(self.layout.file(shard))) is None:
            return f"{self._path(shard)} is missing (rows {start} to {stop - 1} of {self.name}); pull or extract it again"
        if size != (nbytes := self.layout.nbytes(shard)):
            return f"{self._path(shard)} has {size} bytes, expected {nbytes}; pull or extract it again"
        return None

    def check(self, shard: int) -> None:
        """Read a whole shard, padding included, and compare it with its digests.

        Raises:
            StoreError: it is missing, cut or damaged.
        """
        if problem := self.problem(shard):
            raise StoreError(problem)
        fresh = copy(self)
        fresh.verify = "always"
        start, n_rows = self.layout.rows(shard)[0], self.layout.n_chunks(shard) * self.layout.chunk_rows
        for row in range(start, start + n_rows, self.piece_rows):
            fresh.fetch(row, min(row + self.piece_rows, start + n_rows), scratch(self.scratch_nbytes(self.piece_rows)))

    def _path(self, shard: int) -> str:
        return self.place.address(self.layout.file(shard))

    def is_cached(self) -> bool:
        """Whether its first shard is a file that the page cache holds."""
        try:
            file = self._open_shard(0, None)
        except StoreError:  # whoever reads it says what is wrong
            return False
        return not getattr(file, "direct", True)

    def _open_shard(self, shard: int, direct: bool | None) -> ShardFile:
        """A shard, kept open; those used longest ago are let go, and closed once no thread reads them."""
        with self._lock:
            if (file := self._open.pop((shard, direct), None)) is None:
                # What the page cache holds of it is looked up once: that takes a millisecond, and is asked under the lock.
                file = self.place.open(self.layout.file(shard), self._direct.get(shard) if direct is None else direct)
                if direct is None:
                    self._direct[shard] = getattr(file, "direct", None)
                if len(self._open) >= OPEN_SHARDS:
                    self._open.popitem(last=False)
            self._open[shard, direct] = file
            return file


def row_numbers(rows: Sequence[int] | np.ndarray, where: str = "") -> np.ndarray:
    """Row numbers as they were given, int64.

    Raises:
        StoreError: they are a mask, or no numbers of rows; `where` begins the message.
    """
    given = np.asarray(rows)
    if given.size and given.dtype.kind not in "iu":
        raise StoreError(f"{where}row numbers are expected, {given.dtype} given; turn a mask into rows with np.flatnonzero")
    return given.astype(np.int64, copy=False)  # an empty list is an array of floats


def read_tail(file: ShardFile, layout: ArrayLayout, shard: int) -> bytes:
    """The tail of a shard file: its digests and its index."""
    begin, nbytes = layout.data_nbytes(shard), layout.nbytes(shard)
    return bytes(file.read(begin, nbytes - begin, aligned_memory(nbytes - begin + 2 * ALIGNMENT)))
