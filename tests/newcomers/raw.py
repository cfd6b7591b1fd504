"""raw: a folder with the bytes of each array in a file of its own, for languages that read neither HDF5 nor .npy."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

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
from store.format.reader import FeatureStore


class Raw(Exchange):
    """`np.fromfile(OUT / "patch/block5/view0.raw", dtype)` gives the stored values; description.json says of what shape."""

    name = "raw"
    looks = f"a folder with {DESCRIPTION} and .raw files"

    def fits(self, source: Path) -> bool:
        return (source / DESCRIPTION).is_file() and any(source.rglob("*.raw"))

    def write(self, store: FeatureStore, out: Path, names: Sequence[str], progress: Progress) -> None:
        for name in names:
            array, path = store.arrays[name], out / f"{name}.raw"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for shard in range(array.layout.n_shards):
                    file.write(np.ascontiguousarray(array.stored(np.arange(*array.layout.rows(shard)))).data)
                    progress(1)
        write_description(out, description_of(self.name, store, names))

    def read(self, source: Path) -> Exported:
        return _ExportedRaw(source, described_store(str(source / DESCRIPTION), self.name, read_description(source)))


class _ExportedRaw(Exported):
    def where(self, name: str, shard: int) -> str:
        return str(self.source / f"{name}.raw")

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        layout, path = self.store.arrays[name].layout, Path(self.where(name, 0))
        try:
            whole = path.stat().st_size == layout.row_nbytes * layout.shape[0]
            content = np.fromfile(path, np.uint8, layout.row_nbytes * (stop - start), offset=layout.row_nbytes * start)
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror}); export it again") from error
        if not whole:
            raise StoreError(f"{path} is not as long as described; export it again")
        return content.view(layout.dtype).reshape(stop - start, *layout.shape[1:])
