"""hdf5: one file with a data set an array, named as in the store, and descriptions as JSON in attributes."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

    def read(self, source: Path) -> Exported:
        return _ExportedHdf5(source)


class _ExportedHdf5(Exported):
    def __init__(self, source: Path):
        import h5py

        with _explaining(source), ExitStack() as opened:
            file = opened.enter_context(h5py.File(source, "r"))
            description = _read_json(source, file)
            names = [name for name in description["group"]["arrays"] if name in file]
            self._datasets = {name: _open_dataset(source, file, name) for name in names}
            description["arrays"] = {name: _read_json(source, values) for name, values in self._datasets.items()}
            super().__init__(source, described_store(str(source), Hdf5.name, description))
            for name, array in self.store.arrays.items():
                values, layout = self._datasets[name], array.layout
                if (values.shape, values.dtype) != (layout.shape, np.dtype(layout.dtype)):
                    raise StoreError(
                        f"{source}: {name} is {list(values.shape)} {values.dtype}, described as {list(layout.shape)} "
                        f"{layout.dtype}; export the feature set again"
                    )
            self._opened = opened.pop_all()

    def where(self, name: str, shard: int) -> str:
        return str(self.source)

    def close(self) -> None:
        self._opened.close()

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        with _explaining(self.source):
            return np.asarray(self._datasets[name][start:stop])


@contextmanager
def _explaining(source: Path) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # h5py raises all kinds of errors for arbitrary bytes
        raise StoreError(f"{source} cannot be read as HDF5 ({str(error)[:200]}); export the feature set again") from error


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
