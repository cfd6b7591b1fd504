"""raw: the files of npy under another name."""

from collections.abc import Sequence
from pathlib import Path

from store.exchange.exchange import (
    DESCRIPTION,
    Exported,
    Progress,
    described_store,
    description_of,
    read_description,
    write_description,
)
from store.exchange.npy import ExportedNpy, Npy, write_npy
from store.format.reader import FeatureStore


class Raw(Npy):
    name = "raw"
    looks = f"a folder with {DESCRIPTION} and .raw files"

    def fits(self, source: Path) -> bool:
        return (source / DESCRIPTION).is_file() and any(source.rglob("*.raw"))

    def write(self, store: FeatureStore, out: Path, names: Sequence[str], progress: Progress) -> None:
        for name in names:
            write_npy(out / f"{name}.raw", store.arrays[name], progress)
        write_description(out, description_of(self.name, store, names))

    def read(self, source: Path) -> Exported:
        store = described_store(str(source / DESCRIPTION), self.name, read_description(source))
        return _ExportedRaw(source, store, store.arrays)


class _ExportedRaw(ExportedNpy):
    def where(self, name: str, shard: int) -> str:
        return str(self.source / f"{name}.raw")
