"""What a form of exchange is: how a feature set leaves the store, and what it takes to import it again."""

import contextlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import numpy as np

from store.errors import StoreError
from store.format.reader import FeatureStore
from store.places.disk import is_abandoned, partial_name, partials_of, place_file, sync_folder

Progress = Callable[[int], None]


class Exported(ABC):
    """Exported arrays, opened for reading: `store` describes them, and none of their values was read yet.

    Attributes:
        source: the file or folder.
        store: the set that its description promises, checked; its arrays have layouts and the digests of shards, but no shards.
    """

    def __init__(self, source: Path, store: FeatureStore):
        self.source, self.store = source, store

    def __enter__(self) -> "Exported":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close open files."""

    @abstractmethod
    def where(self, name: str, shard: int) -> str:
        """The file that holds a shard of an array, for messages."""

    @abstractmethod
    def constant(self, name: str) -> np.ndarray:
        """The whole of an array without an image axis.

        Raises:
            StoreError: it is missing, cut, or of another shape or dtype than described.
        """

    @abstractmethod
    def unit(self, unit: int) -> dict[str, np.ndarray]:
        """Stored values of the rows of one shard, [rows of the shard, ...], of every array with an image axis.

        Raises:
            StoreError: as `constant`.
        """


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
