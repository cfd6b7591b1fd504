"""What a form of exchange is: how a feature set leaves the store, and what it takes to import it again."""

import contextlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import xxhash

from store.errors import StoreError
from store.exchange.description import WRITTEN
from store.format.reader import FeatureStore
from store.places.disk import is_abandoned, partial_name, partials_of, place_file, sync_folder
from store.writing.writer import FeatureWriter

Progress = Callable[[int], None]


class Exported(contextlib.AbstractContextManager["Exported"]):
    """Exported arrays, opened for reading: `store` describes them, and none of their values was read yet.

    Attributes:
        source: the file or folder.
        store: the set that its description promises, checked; its arrays have layouts and the digests of shards, but no shards.
    """

    def __init__(self, source: Path, store: FeatureStore):
        self.source, self.store = source, store

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close open files, if there are any."""

    @abstractmethod
    def where(self, name: str, shard: int) -> str:
        """The file that holds a shard of an array, for messages."""

    @abstractmethod
    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Stored values of the rows start…stop - 1 of an array.

        Raises:
            StoreError: they are missing, cut, or of another shape or dtype than described.
        """

    def unit(self, unit: int) -> dict[str, np.ndarray]:
        """Stored values of the rows of one shard, [rows of the shard, ...], of every array with an image axis.

        Raises:
            StoreError: as `rows`.
        """
        layouts = {name: array.layout for name, array in self.store.arrays.items() if array.layout.has_image_axis}
        return {name: self.rows(name, *layout.rows(unit)) for name, layout in layouts.items()}


class Exchange(ABC):
    """A form in which other programs read a feature set.

    Attributes:
        looks: how it can be recognised, for messages.
    """

    name: ClassVar[str]
    looks: ClassVar[str]

    @abstractmethod
    def fits(self, source: Path) -> bool:
        """Whether something that exists looks like this form."""

    @abstractmethod
    def read(self, source: Path) -> Exported:
        """Open what was exported.

        Raises:
            StoreError: it is not of this form, its description is not as it was written, or arrays are missing.
        """

    @abstractmethod
    def write(self, store: FeatureStore, out: Path, names: Sequence[str], progress: Progress) -> None:
        """Write arrays to `out`, which does not exist; each is read shard by shard."""

    def export(self, store: FeatureStore, out: Path, names: Sequence[str], progress: Progress | None = None) -> None:
        """Write stored values of arrays, and the description of the feature set, to `out`: all of it or nothing.

        Args:
            store: opened; digests are compared while it is read.
            out: file or folder to make.
            names: of arrays, as `chosen_arrays` gives them.
            progress: called with the number of shards done since the last call.

        Raises:
            StoreError: `out` exists, shards are damaged, or it cannot be written.
        """
        hidden = out.with_name(f".{out.name}")
        partial = partial_name(hidden)
        try:
            if os.path.lexists(out):
                raise StoreError(f"{out} already exists; give another name, or remove it first")
            out.parent.mkdir(parents=True, exist_ok=True)
            for left in filter(is_abandoned, partials_of(hidden)):  # by an export that was killed
                _remove(left)
            try:
                self.write(store, partial, names, progress or (lambda n: None))
                if not _named(partial, out):
                    raise StoreError(f"{out} was made by others meanwhile, and stays; give another name, or remove it first")
            finally:
                _remove(partial)
            sync_folder(out.parent)
        except OSError as error:
            raise StoreError(
                f"{out} cannot be written ({error}); nothing is left of it; fix the cause and export again"
            ) from error


def _named(partial: Path, out: Path) -> bool:
    """Give what is finished its name; false if others have it."""
    if partial.is_file():
        return place_file(partial, out)
    with contextlib.suppress(OSError):  # files are in the way
        os.rename(partial, out)
    return not partial.exists()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def chosen_arrays(store: FeatureStore, selection: Sequence[str] | None) -> list[str]:
    """Names of the arrays to export, in the order of the store: all of this copy, or those selected and their scales.

    `selection`: names, or folders: `patch` is `patch/block5/view0` and everything else below `patch/`.

    Raises:
        StoreError: there is no such array in this copy.
    """
    if selection is None:
        return list(store.arrays)
    chosen: set[str] = set()
    for name in selection:
        if not (matches := [n for n in store.arrays if n == name or n.startswith(f"{name}/")]):
            store.array(name)  # its error names the arrays that exist
        chosen |= set(matches)
    scales = {scale.name for name in chosen if (scale := store.arrays[name].scale) is not None}
    return [name for name in store.arrays if name in chosen | scales]


def import_from(exported: Exported, out: Path, progress: Progress | None = None) -> FeatureStore:
    """Write what was exported to `out` and open it. The files are the same as before the export, byte for byte.

    What an interrupted import has written is kept and used.

    Args:
        exported: opened by an `Exchange`.
        out: folder of the feature set.
        progress: called with the number of shards done since the last call.

    Raises:
        StoreError: `out` is occupied, or values are missing or not those that were exported.
    """
    store, report = exported.store, progress or (lambda n: None)
    constants = {name: _checked_constant(exported, name) for name, a in store.arrays.items() if not a.layout.has_image_axis}
    layouts = [array.layout for array in store.arrays.values() if array.layout.has_image_axis]
    with FeatureWriter(out, store.spec, layouts, constants) as writer:
        todo = writer.missing_units()
        report((writer.n_units - len(todo)) * len(layouts))
        for unit in todo:
            rows = exported.unit(unit)
            checked = {layout.name: _check(exported, layout.name, unit, rows[layout.name]) for layout in layouts}
            start, stop = layouts[0].rows(unit)
            writer.write_unit(unit, checked, [note for note in store.attributes["invalid"] if start <= note["row"] < stop])
            report(len(layouts))
        writer.finish({name: value for name, value in store.attributes.items() if name not in WRITTEN})
    return FeatureStore.open(out)


def _checked_constant(exported: Exported, name: str) -> np.ndarray:
    """An array without an image axis, if it is the one that was exported."""
    layout = exported.store.arrays[name].layout
    values = exported.rows(name, 0, layout.shape[0])
    for shard in range(layout.n_shards):
        _check(exported, name, shard, values[slice(*layout.rows(shard))])
    return values


def _check(exported: Exported, name: str, shard: int, values: np.ndarray) -> np.ndarray:
    """`values`, if they make up the shard that was exported."""
    array = exported.store.arrays[name]
    tail = array.layout.tail(shard, *array.layout.encode(shard, values))
    if xxhash.xxh3_128_hexdigest(tail) != array.shards[shard]["xxh3_128"]:
        first, stop = array.layout.rows(shard)
        raise StoreError(
            f"{exported.where(name, shard)}: rows {first} to {stop - 1} of {name} are not those that were exported: they do "
            "not have the digest in the description; export the feature set again"
        )
    return values
