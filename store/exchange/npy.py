"""npy: a folder with one .npy an array, nested as the names are, and description.json."""

import os
from collections.abc import Sequence
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
from store.format.layout import ArrayLayout
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
        return _ExportedNpy(source, store)


class _ExportedNpy(Exported):
    def __init__(self, source: Path, store: FeatureStore):
        super().__init__(source, store)
        self._files = {name: NpyFile(source / f"{name}.npy", array.layout) for name, array in store.arrays.items()}

    def where(self, name: str, shard: int) -> str:
        return str(self._files[name].path)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        return self._files[name].rows(start, stop)


def npy_header(shape: tuple[int, ...], dtype: str) -> bytes:
    buffer = BytesIO()
    header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


def read_npy_header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype; the values follow in C order. No pickle is ever read; what is no .npy of plain numbers raises
    ValueError.
    """
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
        file.flush()
        os.fsync(file.fileno())


class NpyFile:
    """A .npy that holds an array as it is stored; one that is missing, cut, or of another shape or dtype is refused."""

    def __init__(self, path: Path, layout: ArrayLayout):
        self.path, self.layout = path, layout
        try:
            with path.open("rb") as file:
                shape, dtype = read_npy_header(file)
                self._offset = file.tell()
            size = path.stat().st_size
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error}); export the feature set again") from error
        if (shape, dtype) != (layout.shape, np.dtype(layout.dtype)):
            raise StoreError(
                f"{path} holds {list(shape)} {dtype}, described as {list(layout.shape)} {layout.dtype}; export it again"
            )
        if size != (expected := self._offset + layout.row_nbytes * layout.shape[0]):
            raise StoreError(f"{path} has {size} bytes, expected {expected}; export it again")

    def rows(self, start: int, stop: int) -> np.ndarray:
        values = np.empty((stop - start, *self.layout.shape[1:]), self.layout.dtype)
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset + start * self.layout.row_nbytes)
                n = file.readinto(values.reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read ({error.strerror}); export it again") from error
        if n != values.nbytes:
            raise StoreError(f"{self.path} ended while it was read; export it again")
        return values
