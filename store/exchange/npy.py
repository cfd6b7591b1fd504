"""npy: a folder with one .npy an array, nested as the names are, and description.json."""

import math
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
from numpy.lib import format as npy

from store.errors import StoreError
from store.exchange.exchange import (
    DESCRIPTION,
    Exchange,
    Exported,
    Progress,
    described_store,
    description_of,
    read_description,
    write_description,
)
from store.format.array import ArrayReader
from store.format.reader import FeatureStore


class Npy(Exchange):
    """np.load(OUT / "patch/block5/view0.npy", mmap_mode="r") gives the stored values."""

    name = "npy"
    looks: ClassVar[str] = f"a folder with {DESCRIPTION} and .npy files"

    def fits(self, source: Path) -> bool:
        return (source / DESCRIPTION).is_file() and not any(source.glob("*.tar"))

    def write(self, store: FeatureStore, out: Path, names: Sequence[str], progress: Progress) -> None:
        for name in names:
            write_npy(out / f"{name}.npy", store.arrays[name], progress)
        write_description(out, description_of(self.name, store, names))

    def read(self, source: Path) -> Exported:
        store = described_store(str(source / DESCRIPTION), self.name, read_description(source))
        return ExportedNpy(source, store, store.arrays)


class ExportedNpy(Exported):
    """Arrays of which `names` are .npy files; one that is missing, cut, or of another shape or dtype is refused."""

    def __init__(self, source: Path, store: FeatureStore, names: Iterable[str]):
        super().__init__(source, store)
        self._offsets = {name: self._checked_offset(name) for name in names}

    def where(self, name: str, shard: int) -> str:
        return str(self.source / f"{name}.npy")

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        path, layout = self.where(name, 0), self.store.arrays[name].layout
        shape, begin = (stop - start, *layout.shape[1:]), self._offsets[name] + start * layout.row_nbytes
        try:
            return np.fromfile(path, layout.dtype, math.prod(shape), offset=begin).reshape(shape)
        except (OSError, ValueError) as error:  # it was shortened meanwhile
            raise StoreError(f"{path} cannot be read ({error}); export it again") from error

    def _checked_offset(self, name: str) -> int:
        """Where values begin in the file of an array."""
        path, layout = Path(self.where(name, 0)), self.store.arrays[name].layout
        try:
            with path.open("rb") as file:
                shape, dtype = read_npy_header(file)
                offset = file.tell()
            size = path.stat().st_size
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error}); export the feature set again") from error
        if (shape, dtype) != (layout.shape, np.dtype(layout.dtype)):
            raise StoreError(
                f"{path} holds {list(shape)} {dtype}, described as {list(layout.shape)} {layout.dtype}; export it again"
            )
        if size != (expected := offset + layout.row_nbytes * layout.shape[0]):
            raise StoreError(f"{path} has {size} bytes, expected {expected}; export it again")
        return offset


def npy_header(shape: tuple[int, ...], dtype: str) -> bytes:
    buffer = BytesIO()
    header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


def read_npy_header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype; values follow in C order. No pickle is ever read; ValueError: it is no .npy of plain numbers."""
    try:
        version = npy.read_magic(file)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = read_header(file)
    except Exception as error:  # a parser of Python literals may raise anything on arbitrary bytes
        raise ValueError(f"no header of a .npy file: {str(error)[:200]}") from error
    if fortran or dtype.hasobject:
        raise ValueError("its values are in Fortran order or Python objects")
    return shape, dtype


def write_npy(path: Path, array: ArrayReader, progress: Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(npy_header(array.layout.shape, array.layout.dtype))
        for shard in range(array.layout.n_shards):
            file.write(np.ascontiguousarray(array.stored(np.arange(*array.layout.rows(shard)))).data)
            progress(1)
