"""Writing units whose numbers another process hands out: the one that holds the lock of the set and keeps its journal."""

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import StoreError
from store.format.layout import ArrayLayout
from store.format.reader import FeatureStore
from store.places.disk import NO_SPACE, make_folder, room_left, sync_folder
from store.writing.shard_writer import ShardWriter


def workers_folder(staging: Path) -> Path:
    """The folder in which workers have one each, beside that where a set is staged."""
    return staging.with_name(f"{staging.name}.workers")


class HandedWriter(ShardWriter):
    """Writes units for a `FeatureWriter` elsewhere, which journals them.

    Shards are written in a folder of this writer alone and then moved to where the set is staged, so a worker that is taken
    for dead but goes on cannot disturb the one that does its unit again. Nothing is locked.

    Args:
        staging: where the set is staged.
        layouts, base, base_rows, skip: as for `FeatureWriter`.
    """

    def __init__(
        self,
        staging: Path,
        layouts: Sequence[ArrayLayout],
        base: FeatureStore | None = None,
        base_rows: np.ndarray | None = None,
        skip: Sequence[tuple[str, int]] = (),
    ):
        super().__init__(layouts, base, base_rows, skip)
        self.staging = staging
        self._folder = workers_folder(staging) / uuid.uuid4().hex

    def expect(self, unit: int, missing: Sequence[str]) -> None:
        """Learn which arrays a unit misses that is handed to this writer."""
        self._done[unit] = {name: {} for name in self.layouts if name not in missing}

    def write_unit(self, unit: int, rows: Mapping[str, np.ndarray], notes: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Write the shards that a unit misses, and give the record of them.

        Args:
            rows: as for `write_shards`.
            notes: on rows that are invalid; those of the base are added.


        Raises:
            StoreError: no space is left; or the set is no longer staged, as the process that handed the unit out has ended.
        """
        try:
            make_folder(self._folder)
            shards = self.write_shards(unit, self.missing_arrays(unit), rows, self._file)
            if not self.staging.is_dir():
                raise StoreError(f"{self.staging} is gone, so unit {unit} is not needed any more; start the command again")
            for name in shards:
                file = self.staging / self.layouts[name].file(unit)
                make_folder(file.parent)
                os.replace(self._file(name), file)
                sync_folder(file.parent)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise StoreError(
                f"no space left while writing unit {unit} in {self.staging}: {room_left(error, self.staging)}, and give the "
                "same command again"
            ) from error
        written = [{"array": name, **shard} for name, shard in shards.items()]
        return {"unit": unit, "shards": written, "invalid": self.all_notes(unit, notes)}

    def _file(self, name: str) -> Path:
        return self._folder / name.replace("/", ".")

    def close(self) -> None:
        """Remove the folder of this writer."""
        shutil.rmtree(self._folder, ignore_errors=True)
