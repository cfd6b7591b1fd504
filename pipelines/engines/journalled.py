"""How far a set is that other processes write, from their journals."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from store import StoreError
from store.writing.journal import JOURNAL, read_records


@dataclass(frozen=True)
class Journalled:
    """Images of a set, and those of units that are written."""

    n_images: int
    n_done: int

    @classmethod
    def read(cls, staging: Path | None) -> Self | None:
        """What the journals in a folder say; None if there is none, or no journal in it yet."""
        if staging is None:
            return None
        with suppress(OSError, StoreError, KeyError, ValueError, TypeError, StopIteration):  # it may be published meanwhile
            header, *records = read_records(staging)
            (n_images, *_), _, shard_rows, _ = next(iter(header["arrays"].values()))
            done = {record["unit"] for record in records}
            return cls(n_images, sum(min(shard_rows, n_images - unit * shard_rows) for unit in done))
        return None


def staged(folder: Path, name: str) -> Path | None:
    """Where the set of a name is staged that will be in a folder, under whichever key; the last one that was begun."""
    named = re.compile(re.escape(name) + "(-[0-9a-f]{32})+")
    begun = [file for file in (folder / ".staging").glob(f"*/{JOURNAL}") if named.fullmatch(file.parent.name)]
    return max(begun, key=_changed).parent if begun else None


def _changed(file: Path) -> float:
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0
