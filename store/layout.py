"""Where the rows of an array lie: chunks, shards and their bytes (docs/store-format.md, "Index arithmetic")."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np

ATTRIBUTE = "beyondcls"  # where our attributes stand in a zarr.json
# Every feature set has a group of each kind, so that a pipeline can name them all; it is empty where an encoder has none.
KINDS = ("images", "patch", "cls", "registers", "statistics", "attention", "norm")
CHUNK_ROWS = 32
SHARD_ROWS = 1024
ABSENT = np.uint64(2**64 - 1)  # index entry of an inner chunk that lies beyond the array


@dataclass(frozen=True)
class ArrayLayout:
    """One Zarr array, chunked and sharded on axis 0 only, uncompressed.

    A shard file is the C-order block of its rows, padded with zeros to whole chunks, followed by the shard index.
    """

    name: str  # path inside the group, e.g. "patch/block5/view0"
    shape: tuple[int, ...]
    dtype: str
    dimensions: tuple[str, ...]
    shard_rows: int = SHARD_ROWS
    chunk_rows: int = CHUNK_ROWS

    @classmethod
    def from_zarr(cls, name: str, meta: Mapping[str, Any]) -> "ArrayLayout":
        """The layout that an array's zarr.json describes.

        Raises: ValueError, KeyError, TypeError, AttributeError: it is not sharded on axis 0 only, uncompressed, little-endian.
        """
        (sharding,) = meta["codecs"]
        (inner,), settings = sharding["configuration"]["codecs"], sharding["configuration"]
        grid, chunk = list(meta["chunk_grid"]["configuration"]["chunk_shape"]), list(settings["chunk_shape"])
        shape, dtype = list(meta["shape"]), np.dtype(str(meta["data_type"]))
        as_expected = {
            "sizes": bool(shape and grid and chunk) and all(type(n) is int and n > 0 for n in shape + grid + chunk),
            "shards on axis 0 only": shape[1:] == grid[1:] == chunk[1:] and grid[0] % chunk[0] == 0,
            "plain numbers": dtype.kind in "fiu",
            "sharded": sharding["name"] == "sharding_indexed" and settings.get("index_location", "end") == "end",
            "uncompressed": inner["name"] == "bytes" and inner.get("configuration", {}).get("endian", "little") == "little",
            "indexed": [c["name"] for c in settings["index_codecs"]] == ["bytes", "crc32c"],
            "file names": meta["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "/"}},
        }
        if wrong := [what for what, holds in as_expected.items() if not holds]:
            raise ValueError(f"not as this store writes it: {', '.join(wrong)}")
        return cls(name, tuple(shape), dtype.name, tuple(meta.get("dimension_names") or ()), grid[0], chunk[0])

    @property
    def n_shards(self) -> int:
        return math.ceil(self.shape[0] / self.shard_rows)

    @property
    def row_nbytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape[1:])

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

    def index(self, shard: int) -> bytes:
        """The shard index: (offset, nbytes) of every inner chunk as little-endian uint64, then its CRC-32C."""
        entries = np.full((self.shard_rows // self.chunk_rows, 2), ABSENT, dtype="<u8")
        n, nbytes = self.n_chunks(shard), self.chunk_rows * self.row_nbytes
        entries[:n, 0] = np.arange(n, dtype="<u8") * nbytes
        entries[:n, 1] = nbytes
        raw = entries.tobytes()
        return raw + google_crc32c.value(raw).to_bytes(4, "little")

    def nbytes(self, shard: int) -> int:
        """Size of a shard file."""
        return self.n_chunks(shard) * self.chunk_rows * self.row_nbytes + 16 * (self.shard_rows // self.chunk_rows) + 4

    def encode(self, shard: int, rows: np.ndarray) -> bytes:
        """The shard file of `rows` [rows of this shard, ...]. Zarr's `bytes` codec is little-endian."""
        start, stop = self.rows(shard)
        assert rows.shape == (stop - start, *self.shape[1:]), (self.name, rows.shape)
        assert rows.dtype == np.dtype(self.dtype), (self.name, rows.dtype)
        data = np.ascontiguousarray(rows, dtype=np.dtype(self.dtype).newbyteorder("<")).tobytes()
        padding = self.n_chunks(shard) * self.chunk_rows * self.row_nbytes - len(data)
        return data + bytes(padding) + self.index(shard)

    def zarr_arguments(self) -> dict[str, Any]:
        """What `zarr.create_array` is given, so that any Zarr v3 reader opens the array."""
        return {
            "name": self.name,
            "shape": self.shape,
            "dtype": self.dtype,
            "chunks": (self.chunk_rows, *self.shape[1:]),
            "shards": (self.shard_rows, *self.shape[1:]),
            "compressors": None,
            "filters": None,
            "fill_value": 0,
            "dimension_names": self.dimensions,
            "config": {"write_empty_chunks": True},
        }
