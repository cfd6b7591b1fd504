"""One array of a feature set, read row by row from its shard files without decoding (docs/store-format.md)."""

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from store.errors import StoreError
from store.layout import ATTRIBUTE, ArrayLayout

Verify = Literal["first", "never"]


class ArrayReader:
    """Rows of one array.

    Args:
        folder: of the feature set.
        name: of the array, its path inside that folder.
        meta: its zarr.json.
        verify: check a shard's digest when it is first touched ("first"), or never.

    Raises:
        StoreError: the metadata is not of this format, or a shard is missing or cut.
    """

    def __init__(self, folder: Path, name: str, meta: Mapping[str, Any], verify: Verify = "first"):
        self.name, self._folder, self._verify = name, folder, verify
        self._touched: set[int] = set()
        file = folder / name / "zarr.json"
        try:
            self.layout = ArrayLayout.from_zarr(name, meta)
            shards = meta["attributes"][ATTRIBUTE]["shards"]
            given = [(s["rows"], s["nbytes"]) for s in shards]
            self._digests: list[str] = [s["xxh3_128"] for s in shards]
            n = min(self.layout.n_shards, len(given) + 1)
            expected = [(list(self.layout.rows(i)), self.layout.nbytes(i)) for i in range(n)]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
            raise StoreError(
                f"{file} does not describe an array of this store ({error!r}); pull or extract it again"
            ) from error
        if given != expected:
            raise StoreError(f"{file}: rows or bytes of its shards do not fit its shape; pull or extract the feature set again")
        for shard, ((start, stop), nbytes) in enumerate(expected):
            path = self._path(shard)
            if not path.exists():
                raise StoreError(f"{path} is missing (rows {start} to {stop - 1} of {name}); pull or extract it again")
            if (size := path.stat().st_size) != nbytes:
                raise StoreError(f"{path} has {size} bytes, expected {nbytes}; pull or extract it again")

    def __repr__(self) -> str:
        return f"ArrayReader({self.name!r}, {list(self.shape)}, {self.dtype})"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.layout.dtype)

    @property
    def nbytes(self) -> int:
        return self.layout.row_nbytes * self.shape[0]

    def all(self) -> np.ndarray:
        """The whole array."""
        return self.rows(np.arange(self.shape[0]))

    def rows(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Rows in the order of `indices`, [n, ...]; neighbours in `indices` that are neighbours on disk are read at once.

        Raises: StoreError: an index is out of range or no integer, or a shard's bytes are not those that were written.
        """
        wanted = np.asarray(indices)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise StoreError(f"{self.name}: row numbers are expected, {wanted.dtype} given; of a mask, take np.flatnonzero")
        wanted = wanted.astype(np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.shape[0]):
            raise StoreError(
                f"{self.name}: rows {wanted.min()} to {wanted.max()} asked for, it has rows 0 to {self.shape[0] - 1}"
            )
        out = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        shard_of = wanted // self.layout.shard_rows
        # A run ends where the next row is not the following one, or lies in another shard.
        ends = np.flatnonzero((np.diff(wanted) != 1) | (np.diff(shard_of) != 0)) + 1
        bounds = [0, *ends.tolist(), len(wanted)] if wanted.size else []
        descriptors: dict[int, int] = {}
        try:
            for start, stop in pairwise(bounds):
                shard = int(shard_of[start])
                if shard not in descriptors:
                    descriptors[shard] = self._open(shard)
                offset = (int(wanted[start]) - shard * self.layout.shard_rows) * self.layout.row_nbytes
                self._read(descriptors[shard], out[start:stop], offset, shard)
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)
        return out

    def check(self, shard: int) -> None:
        """Compare a shard with the digest that was written down for it.

        Raises: StoreError: they differ.
        """
        digest = xxhash.xxh3_128()
        with self._path(shard).open("rb") as source:
            while block := source.read(1 << 22):
                digest.update(block)
        if digest.hexdigest() != (expected := self._digests[shard]):
            raise StoreError(
                f"{self._path(shard)} is damaged: its digest is {digest.hexdigest()}, expected {expected}; "
                "pull or extract it again"
            )

    def _path(self, shard: int) -> Path:
        return self._folder / self.layout.file(shard)

    def _open(self, shard: int) -> int:
        if self._verify == "first" and shard not in self._touched:
            self.check(shard)
            self._touched.add(shard)
        return os.open(self._path(shard), os.O_RDONLY)

    def _read(self, descriptor: int, target: np.ndarray, offset: int, shard: int) -> None:
        view = memoryview(target.reshape(-1).view(np.uint8).data)
        while len(view):
            n = os.preadv(descriptor, [view], offset)
            if n == 0:
                raise StoreError(f"{self._path(shard)} ended while it was read; pull or extract it again")
            view, offset = view[n:], offset + n
