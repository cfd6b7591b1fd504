"""hdf5: one file with a data set an array, named as in the store, and descriptions as JSON in attributes."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from store.errors import StoreError
from store.exchange.exchange import Exchange, Exported, Progress, described_store, description_of, load_json
from store.format.layout import ATTRIBUTE
from store.format.reader import FeatureStore

if TYPE_CHECKING:
    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"


class Hdf5(Exchange):
    """h5py.File(OUT)["patch/block5/view0"] has the stored values, in chunks of 32 rows, uncompressed."""

    name = "hdf5"
    looks: ClassVar[str] = "a file that HDF5 wrote"

    def fits(self, source: Path) -> bool:
        if not source.is_file():
            return False
        with source.open("rb") as file:
            return source.suffix in (".h5", ".hdf5") or file.read(len(SIGNATURE)) == SIGNATURE

    def write(self, store: FeatureStore, out: Path, names: Sequence[str], progress: Progress) -> None:
        import h5py

        with h5py.File(out, "w") as file:
            description = description_of(self.name, store, names)
            entries = description.pop("arrays")
            file.attrs[ATTRIBUTE] = json.dumps(description)
            for name in names:
                array, layout = store.arrays[name], store.arrays[name].layout
                chunks = (min(layout.chunk_rows, layout.shape[0]), *layout.shape[1:])
                values = file.create_dataset(name, layout.shape, layout.dtype, chunks=chunks)
                values.attrs[ATTRIBUTE] = json.dumps(entries[name])
                for shard in range(layout.n_shards):
                    start, stop = layout.rows(shard)
                    values[start:stop] = array.stored(np.arange(start, stop))
                    progress(1)
        with out.open("rb") as exported:
            os.fsync(exported.fileno())

    def read(self, source: Path) -> Exported:
        import h5py

        if not source.is_file():
            raise StoreError(f"there is no file {source}; name what `beyondcls store export --to hdf5` wrote")
        try:
            file = h5py.File(source, "r")
        except Exception as error:
            raise _unreadable_error(source, error) from error
        try:
            return _ExportedHdf5(source, file)
        except BaseException:
            file.close()
            raise


def _unreadable_error(source: Path, error: Exception) -> StoreError:
    # h5py raises all kinds of errors for arbitrary bytes.
    return StoreError(f"{source} cannot be read as HDF5 ({str(error)[:200]}); export the feature set again")


class _ExportedHdf5(Exported):
    def __init__(self, source: Path, file: "h5py.File"):
        self._file = file
        self._datasets: dict[str, h5py.Dataset] = {}
        try:
            description = _read_json(source, file)
            for name in description["group"]["arrays"]:
                if name in file:
                    self._datasets[name] = _open_dataset(source, file, name)
            description["arrays"] = {name: _read_json(source, values) for name, values in self._datasets.items()}
        except StoreError:
            raise
        except Exception as error:
            raise _unreadable_error(source, error) from error
        super().__init__(source, described_store(str(source), Hdf5.name, description))
        for name, array in self.store.arrays.items():
            values, layout = self._datasets[name], array.layout
            if (values.shape, values.dtype) != (layout.shape, np.dtype(layout.dtype)):
                raise StoreError(
                    f"{source}: {name} is {list(values.shape)} {values.dtype}, described as {list(layout.shape)} "
                    f"{layout.dtype}; export the feature set again"
                )

    def where(self, name: str, shard: int) -> str:
        return str(self.source)

    def close(self) -> None:
        self._file.close()

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        try:
            return np.asarray(self._datasets[name][start:stop])
        except Exception as error:
            raise _unreadable_error(self.source, error) from error


def _read_json(source: Path, node: "h5py.Group | h5py.Dataset") -> Any:
    text = node.attrs.get(ATTRIBUTE)
    if not isinstance(text, str):
        raise StoreError(f"{source}: {node.name} has no text attribute {ATTRIBUTE!r}; name what `beyondcls store export` wrote")
    return load_json(f"{source}, attribute of {node.name},", text)


def _open_dataset(source: Path, file: "h5py.File", name: str) -> "h5py.Dataset":
    """A data set, refused if its values are elsewhere, or not all there."""
    import h5py

    parts = name.split("/")
    for path in ("/".join(parts[: i + 1]) for i in range(len(parts))):
        if type(file.get(path, getlink=True)) is not h5py.HardLink:
            raise StoreError(f"{source}: {path} is a link; export the feature set again")
    values = file[name]
    if not isinstance(values, h5py.Dataset) or values.is_virtual or values.external:
        raise StoreError(f"{source}: {name} has no values of its own; export the feature set again")
    # Without compression, fewer bytes than values are chunks that were never written: they would read as zeros.
    if values.id.get_storage_size() < values.nbytes:
        raise StoreError(f"{source}: {name} is not whole, or was compressed; export the feature set again")
    return values
