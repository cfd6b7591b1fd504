"""What an array is called, and where its rows are: chunks, shards and their bytes (docs/store-format.md, "Index arithmetic").

Names are KIND, or KIND/WHAT, then /blockB and /viewV where an array has them, and the suffix -scale for scales. Arrays without
an image axis hold weights of the final norm, and truths of all images, one after the other.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import google_crc32c
import numpy as np
import xxhash

ATTRIBUTE = "beyondcls"  # the key of our attributes in a zarr.json
# Every feature set has a group of each kind, so that a pipeline can name them all; it is empty where an encoder has none.
KINDS = ("images", "patch", "cls", "registers", "average", "pooled", "statistics", "attention", "norm")
CHUNK_ROWS = 32
CHECKED_NBYTES = 1 << 16  # a digest covers about as many bytes: less would cost space, more would make single rows slow
PIECE = 1 << 18  # values that are looked through at once
DTYPES = ("float16", "float32", "float64", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))
ABSENT = np.uint64(2**64 - 1)  # index entry of an inner chunk beyond the end of the array
DIGEST_NBYTES = 16
DIGEST = "images/digest"  # name of the array of digests of images
SCALE = "-scale"  # suffix of the name of an array's scales
SAFE_NAME = re.compile(r"[\w-]{1,100}(/[\w-]{1,100})*", re.ASCII)  # of an array: it does not lead out of the folder
NUMBERED = re.compile(r"(block|view)(0|[1-9][0-9]{0,8})", re.ASCII)
SHARD_CHUNKS = 1024  # 64 MiB
# Of arrays without an image axis, by name; those of others are channels.
DIMENSIONS = {
    "images/segmentation/first": ("image_boundary",),
    "images/segmentation/label": ("segment",),
    "images/segmentation/start": ("segment_boundary",),
    "images/segmentation/counts": ("byte",),
    "images/instances/first": ("image_boundary",),
    "images/instances/label": ("instance",),
    "images/instances/box": ("instance", "corner"),
    "images/instances/area": ("instance",),
    "images/instances/crowd": ("instance",),
    "images/instances/start": ("instance_boundary",),
    "images/instances/counts": ("byte",),
}


@dataclass(frozen=True)
class ArrayName:
    """The parts of a name: `images/label`, `statistics/cls_self/view0`, `patch/block5/view0`, `patch/block5/view0-scale`.

    Attributes:
        kind: the folder of the set that has the array, one of KINDS in what this program writes.
        what: a statistic, a row of attention, a field of the images; empty for tokens.
        block, view: counted from 0; None where the array belongs to none.
        is_scale: it holds the scales of the array of the same name without SCALE.
    """

    kind: str
    what: str = ""
    block: int | None = None
    view: int | None = None
    is_scale: bool = False

    @classmethod
    def parse(cls, name: str) -> "ArrayName":
        """The parts of any name; `str` joins them again."""
        main = name.removesuffix(SCALE)
        kind, *parts = main.split("/")
        numbers: dict[str, int] = {}
        for word in ("view", "block"):  # from the end
            if parts and (matched := NUMBERED.fullmatch(parts[-1])) and matched[1] == word:
                numbers[word] = int(matched[2])
                parts.pop()
        return cls(kind, "/".join(parts), numbers.get("block"), numbers.get("view"), main != name)

    def __str__(self) -> str:
        block = "" if self.block is None else f"block{self.block}"
        view = "" if self.view is None else f"view{self.view}"
        return "/".join(part for part in (self.kind, self.what, block, view) if part) + SCALE * self.is_scale


def kind_of(name: str) -> str:
    """The first part of a name: the folder of its array."""
    return name.split("/", 1)[0]


@dataclass(frozen=True)
class ArrayLayout:
    """One Zarr array, chunked and sharded on axis 0 only, uncompressed.

    A shard file is the C-order block of its rows, padded with zeros to whole chunks, followed by its *tail*: digests of
    that block piece by piece, then the shard index that Zarr prescribes. The digest of the tail vouches for the file.
    """

    name: str  # path inside the group, e.g. "patch/block5/view0"
    shape: tuple[int, ...]
    dtype: str  # as Zarr sees it
    dimensions: tuple[str, ...]
    shard_rows: int = 1024
    chunk_rows: int = CHUNK_ROWS
    codec: str | None = None  # of arrays that hold tokens or maps

    @classmethod
    def from_zarr(cls, name: str, meta: Mapping[str, Any]) -> "ArrayLayout":
        """The layout that an array's zarr.json describes.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is not sharded on axis 0 only, uncompressed, little-endian.
        """
        (sharding,) = meta["codecs"]
        (inner,), settings = sharding["configuration"]["codecs"], sharding["configuration"]
        grid, chunk = list(meta["chunk_grid"]["configuration"]["chunk_shape"]), list(settings["chunk_shape"])
        if meta["data_type"] not in DTYPES:  # numpy would evaluate what it does not know
            raise ValueError(f"not plain numbers: {meta['data_type']!r}")
        shape, dtype = list(meta["shape"]), np.dtype(meta["data_type"])
        as_expected = {
            "sizes": bool(shape and grid and chunk) and all(type(n) is int and n > 0 for n in shape + grid + chunk),
            "shards on axis 0 only": shape[1:] == grid[1:] == chunk[1:] and grid[0] % chunk[0] == 0,
            "sharded": sharding["name"] == "sharding_indexed" and settings.get("index_location", "end") == "end",
            "uncompressed": inner["name"] == "bytes" and inner.get("configuration", {}).get("endian", "little") == "little",
            "indexed": [c["name"] for c in settings["index_codecs"]] == ["bytes", "crc32c"],
            "file names": meta["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "/"}},
        }
        if wrong := [name for name, holds in as_expected.items() if not holds]:
            raise ValueError(f"not as this store writes it: {', '.join(wrong)}")
        codec = meta.get("attributes", {}).get(ATTRIBUTE, {}).get("codec")
        return cls(name, tuple(shape), dtype.name, tuple(meta.get("dimension_names") or ()), grid[0], chunk[0], codec)

    def to_zarr(self, attributes: Mapping[str, Any]) -> bytes:
        """The array's zarr.json: what zarr-python writes for such an array, and our attributes."""
        inner: dict[str, Any] = {"name": "bytes"}
        if np.dtype(self.dtype).itemsize > 1:
            inner["configuration"] = {"endian": "little"}
        index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        sharding = {
            "chunk_shape": [self.chunk_rows, *self.shape[1:]],
            "codecs": [inner],
            "index_codecs": index,
            "index_location": "end",
        }
        meta = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.shard_rows, *self.shape[1:]]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0.0 if np.dtype(self.dtype).kind == "f" else 0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "dimension_names": list(self.dimensions),
            "storage_transformers": [],
            "attributes": {ATTRIBUTE: {**({"codec": self.codec} if self.codec else {}), **attributes}},
        }
        return json_bytes(meta)

    @property
    def has_image_axis(self) -> bool:
        """Whether row i belongs to image i."""
        return self.dimensions[:1] == ("image",)

    @property
    def n_shards(self) -> int:
        return math.ceil(self.shape[0] / self.shard_rows)

    @cached_property
    def row_nbytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape[1:])

    @cached_property
    def checked_rows(self) -> int:
        """Rows that share a digest: the fewest that have 64 KiB, a power of two, at most a chunk."""
        n_rows = 1 << max(0, math.ceil(CHECKED_NBYTES / self.row_nbytes) - 1).bit_length()
        return n_rows if n_rows < self.chunk_rows and self.chunk_rows % n_rows == 0 else self.chunk_rows

    def rows(self, shard: int) -> tuple[int, int]:
        """First row and one past the last row of a shard."""
        start = shard * self.shard_rows
        return start, min(start + self.shard_rows, self.shape[0])

    def n_chunks(self, shard: int) -> int:
        """Inner chunks that are present in a shard; the last one may be padded."""
        start, stop = self.rows(shard)
        return math.ceil((stop - start) / self.chunk_rows)

    def file(self, shard: int) -> str:
        """Path of a shard inside the group, as Zarr's default chunk key encoding names it."""
        return "/".join([self.name, "c", str(shard), *("0" for _ in self.shape[1:])])

    def data_nbytes(self, shard: int) -> int:
        """Bytes of a shard's rows, padding included; the tail begins there."""
        return self.n_chunks(shard) * self.chunk_rows * self.row_nbytes

    def n_digests(self, shard: int) -> int:
        """Digests in a shard's tail."""
        return self.n_chunks(shard) * self.chunk_rows // self.checked_rows

    def nbytes(self, shard: int) -> int:
        """Size of a shard file."""
        index = 16 * (self.shard_rows // self.chunk_rows) + 4
        return self.data_nbytes(shard) + DIGEST_NBYTES * self.n_digests(shard) + index

    def index(self, shard: int) -> bytes:
        """The shard index: (offset, nbytes) of every inner chunk as little-endian uint64, then its CRC-32C."""
        entries = np.full((self.shard_rows // self.chunk_rows, 2), ABSENT, dtype="<u8")
        n, nbytes = self.n_chunks(shard), self.chunk_rows * self.row_nbytes
        entries[:n, 0] = np.arange(n, dtype="<u8") * nbytes
        entries[:n, 1] = nbytes
        raw = entries.tobytes()
        return raw + google_crc32c.value(raw).to_bytes(4, "little")

    def encode(self, shard: int, rows: np.ndarray) -> tuple[memoryview, memoryview]:
        """Bytes of `rows` [rows of this shard, ...] and of the padding behind them; `tail` follows. Nothing is copied."""
        start, stop = self.rows(shard)
        assert rows.shape == (stop - start, *self.shape[1:]), (self.name, rows.shape)
        assert rows.dtype == np.dtype(self.dtype), (self.name, rows.dtype)
        little = np.ascontiguousarray(rows, dtype=np.dtype(self.dtype).newbyteorder("<"))
        data = memoryview(little.reshape(-1).view(np.uint8).data)
        return data, memoryview(bytes(self.data_nbytes(shard) - len(data)))

    def tail(self, shard: int, data: memoryview, padding: memoryview) -> bytes:
        """The end of a shard file: XXH3-128 of every `checked_rows` rows, 16 bytes each, and its index."""
        step, digests = self.checked_rows * self.row_nbytes, bytearray()
        for start in range(0, len(data) + len(padding), step):
            digest = xxhash.xxh3_128(data[start : start + step])
            if (end := start + step) > len(data):  # the piece in which the padding begins, or one of padding alone
                digest.update(padding[max(start, len(data)) - len(data) : end - len(data)])
            digests += digest.digest()
        return bytes(digests) + self.index(shard)


def flat_layout(name: str, shape: Sequence[int], dtype: str) -> ArrayLayout:
    """Layout of an array without an image axis.

    A chunk has 64 KiB, as has what shares a digest, so a few bytes of a large array can be read and compared alone; a shard has
    1024 chunks. An array that fits into one chunk is one, without padding.
    """
    row_nbytes = ArrayLayout(name, tuple(shape), dtype, ()).row_nbytes
    chunk_rows = min(shape[0], max(1, CHECKED_NBYTES // row_nbytes))
    shard_rows = chunk_rows * min(SHARD_CHUNKS, -(-shape[0] // chunk_rows))
    return ArrayLayout(name, tuple(shape), dtype, DIMENSIONS.get(name, ("channel",)), shard_rows, chunk_rows)


def count_nonfinite(values: np.ndarray) -> int:
    """NaN and infinities among `values`; 0 for integers."""
    if values.dtype.kind != "f" or not values.size:
        return 0
    # Bits of larger numbers are larger, those of each sign by themselves: to look for the largest takes a tenth of the time of
    # numpy's isfinite for float16. Piece by piece, in the cache.
    flat, infinities = np.ascontiguousarray(values).reshape(-1), np.array([np.inf, -np.inf], values.dtype)
    signed, unsigned = (flat.view(f"{kind}{values.dtype.itemsize}") for kind in "iu")
    infinity, minus_infinity = infinities.view(signed.dtype)[0], infinities.view(unsigned.dtype)[1]
    n = 0
    for piece in (slice(i, i + PIECE) for i in range(0, len(flat), PIECE)):
        if signed[piece].max() >= infinity or unsigned[piece].max() >= minus_infinity:
            n += int(np.count_nonzero(~np.isfinite(flat[piece])))
    return n


def json_bytes(meta: Mapping[str, Any]) -> bytes:
    """The bytes of a zarr.json."""
    return (json.dumps(meta, indent=1) + "\n").encode()


def with_digest(meta: Mapping[str, Any]) -> bytes:
    """The bytes of the group's zarr.json with `digest` among our attributes: XXH3-128 of them with 32 zeros in its place."""
    attributes = {**meta["attributes"][ATTRIBUTE], "digest": "0" * 32}
    blank = {**meta, "attributes": {**meta["attributes"], ATTRIBUTE: attributes}}
    attributes["digest"] = xxhash.xxh3_128_hexdigest(json_bytes(blank))
    return json_bytes(blank)


GROUP = json_bytes({"zarr_format": 3, "node_type": "group", "attributes": {}})  # zarr.json of every group but the outermost


def groups_of(names: Sequence[str]) -> list[str]:
    """Paths of all groups below the outermost: the kinds, and what is between them and the arrays."""
    between = {"/".join(parts[:i]) for name in names for parts in [name.split("/")] for i in range(1, len(parts))}
    return sorted({*KINDS, *between})


def shard_rows_of(row_nbytes: int, n_rows: int) -> int:
    """Rows of a shard, for the set's widest array: a sixteenth of the set, of 4 MiB to 512 MiB; a multiple of a chunk."""
    nbytes = min(max(row_nbytes * n_rows / 16, 4 << 20), 512 << 20)
    return max(CHUNK_ROWS, round(nbytes / row_nbytes / CHUNK_ROWS) * CHUNK_ROWS) if n_rows else CHUNK_ROWS
