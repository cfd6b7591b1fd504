"""webdataset: tars with one sample an image, one .npy an array, and description.json next to them.

Sample keys are row numbers; "patch/block5/view0" of row 7 is the member 000000007.patch.block5.view0.npy. Names of arrays
have no dots, so they can be restored; ids of images, which may be any text, are in images/id. A tar has the images of a shard.
"""

import re
import tarfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

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
from store.exchange.npy import ExportedNpy, npy_header, read_npy_header, write_npy
from store.format.reader import FeatureStore
from store.places.disk import UntrustedHeader

HEADER_NBYTES = 1 << 12  # at most, of the header of a .npy file of plain numbers


class WebDataset(Exchange):
    """wds.WebDataset(OUT / "features-{000000..000003}.tar").decode() gives the stored values of each image."""

    name = "webdataset"
    looks: ClassVar[str] = f"a folder with {DESCRIPTION} and .tar files"

    def fits(self, source: Path) -> bool:
        return (source / DESCRIPTION).is_file() and any(source.glob("*.tar"))

    def write(self, store: FeatureStore, out: Path, names: Sequence[str], progress: Progress) -> None:
        out.mkdir(parents=True)
        chosen = [store.arrays[name] for name in names]
        for array in (a for a in chosen if not a.layout.has_image_axis):
            write_npy(out / f"{array.name}.npy", array, progress)
        arrays = [array for array in chosen if array.layout.has_image_axis]
        headers = [npy_header(array.layout.shape[1:], array.layout.dtype) for array in arrays]
        for unit in range(arrays[0].layout.n_shards if arrays else 0):
            with tarfile.open(out / _tar_name(unit), "w", format=tarfile.PAX_FORMAT) as tar:
                # A few rows at a time: every array's rows are in memory at once.
                start, stop, step = *arrays[0].layout.rows(unit), arrays[0].layout.chunk_rows
                for rows in (np.arange(begin, min(begin + step, stop)) for begin in range(start, stop, step)):
                    stored = [array.stored(rows) for array in arrays]
                    for i, row in enumerate(rows):
                        for array, header, values in zip(arrays, headers, stored, strict=True):
                            content = header + values[i].tobytes()
                            # The time is 0, the owner nobody: equal features are equal bytes.
                            member = tarfile.TarInfo(f"{row:09d}.{array.name.replace('/', '.')}.npy")
                            member.size = len(content)
                            tar.addfile(member, BytesIO(content))
                            _forget_members(tar)
            progress(len(arrays))
        tar_rows = arrays[0].layout.shard_rows if arrays else 1
        write_description(out, description_of(self.name, store, names) | {"tar_rows": tar_rows})

    def read(self, source: Path) -> Exported:
        description = read_description(source)
        store = described_store(str(source / DESCRIPTION), self.name, description)
        return _ExportedTars(source, store, description.get("tar_rows"))


def _tar_name(unit: int) -> str:
    return f"features-{unit:06d}.tar"


def _forget_members(tar: tarfile.TarFile) -> None:
    """A tar remembers all members that were read or written; there may be millions."""
    tar.members = []  # type: ignore[attr-defined]


class _ExportedTars(ExportedNpy):
    def __init__(self, source: Path, store: FeatureStore, tar_rows: Any):
        self._layouts = {name: array.layout for name, array in store.arrays.items() if array.layout.has_image_axis}
        super().__init__(source, store, [name for name in store.arrays if name not in self._layouts])
        if tar_rows != store.shard_rows:
            raise StoreError(f"{source / DESCRIPTION} has tar_rows {tar_rows!r}, expected {store.shard_rows}; export it again")
        self._encoded = {name.replace("/", "."): name for name in self._layouts}

    def where(self, name: str, shard: int) -> str:
        return str(self.source / _tar_name(shard)) if name in self._layouts else super().where(name, shard)

    def unit(self, unit: int) -> dict[str, np.ndarray]:
        start, stop = next(iter(self._layouts.values())).rows(unit)
        rows = {name: np.empty((stop - start, *layout.shape[1:]), layout.dtype) for name, layout in self._layouts.items()}
        file, members = self.source / _tar_name(unit), set()
        try:
            for row, name, value in self._members(file):
                if not start <= row < stop or (row, name) in members:
                    raise ValueError(f"row {row} of {name} appears twice, or belongs in another tar")
                rows[name][row - start] = value
                members.add((row, name))
            if len(members) != (stop - start) * len(rows):
                missing = next(m for row in range(start, stop) for m in rows if (row, m) not in members)
                raise ValueError(f"it lacks {missing} and perhaps more: {len(members)} members for {stop - start} images")
        except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, LookupError, RecursionError) as error:
            raise StoreError(f"{file} cannot be read ({error}); export the feature set again") from error
        return rows

    def _members(self, file: Path) -> Iterator[tuple[int, str, np.ndarray]]:
        """Row, array and value of each member. What is no such tar raises ValueError, TarError or OSError."""
        with tarfile.open(file, "r:", tarinfo=UntrustedHeader) as tar:
            while (member := tar.next()) is not None:
                _forget_members(tar)
                matched = re.fullmatch(r"([0-9]{9,18})\.([\w.-]+)\.npy", member.name, re.ASCII)
                name = self._encoded.get(matched[2]) if matched else None
                if matched is None or name is None or not member.isreg() or member.issparse():
                    kind = "file" if member.isreg() else "link or other"
                    raise ValueError(f"it has the {kind} member {member.name[:200]!r}, which export does not write")
                yield int(matched[1]), name, self._value(tar, member, name)

    def _value(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> np.ndarray:
        layout = self._layouts[name]
        if member.size > layout.row_nbytes + HEADER_NBYTES:
            raise ValueError(f"{member.name} has {member.size} bytes for {layout.row_nbytes} of values")
        source = tar.extractfile(member)
        assert source is not None, member  # a regular file
        file = BytesIO(source.read())
        if (found := read_npy_header(file)) != (layout.shape[1:], np.dtype(layout.dtype)):
            raise ValueError(
                f"{member.name} holds {list(found[0])} {found[1]}, described as {list(layout.shape[1:])} {layout.dtype}"
            )
        if len(content := file.read()) != layout.row_nbytes:
            raise ValueError(f"{member.name} holds {len(content)} bytes of values, expected {layout.row_nbytes}")
        return np.frombuffer(content, layout.dtype).reshape(layout.shape[1:])
