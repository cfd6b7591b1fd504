"""Which folders are feature sets, and which are the remains of unfinished work on one."""

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from store.errors import StoreError
from store.format.layout import ATTRIBUTE, GROUP, KINDS
from store.places import place_at
from store.writing.journal import JOURNAL, read_records
from store.writing.lock import holder

STAGING = ".staging"
REMOVED = ".removed-"  # what the name of a feature set begins with once its removal has begun


def is_feature_set(folder: Path) -> bool:
    """Whether a folder is a feature set, be it damaged: its zarr.json says so, or the groups of two kinds of arrays do."""
    file = folder / "zarr.json"
    content = file.read_bytes() if file.is_file() else b""
    try:
        meta = json.loads(content)
        if meta["node_type"] == "group" and ATTRIBUTE in meta["attributes"]:
            return True
    except (ValueError, KeyError, TypeError, RecursionError):
        if b'"node_type": "group"' in content and f'"{ATTRIBUTE}"'.encode() in content:
            return True
    groups = [folder / kind / "zarr.json" for kind in KINDS]
    return sum(group.is_file() and group.read_bytes() == GROUP for group in groups) > 1


def feature_sets(root: Path) -> Iterator[Path]:
    """Feature sets at and below a folder, in the order of their names."""
    for folder, below, _ in os.walk(root):
        if is_feature_set(Path(folder)):
            below.clear()
            yield Path(folder)
        below[:] = sorted(name for name in below if not name.startswith("."))


def sets_at(root: str) -> Iterator[tuple[str, int]]:
    """Addresses of the feature sets in a folder of an object store, unfinished uploads among them, and their bytes; sorted.

    Raises:
        StoreError: it cannot be listed.
    """
    sets: dict[str, int] = {}
    for name, nbytes in place_at(root).sizes().items():
        if "/" in name:
            first = name.split("/")[0]
            sets[first] = sets.get(first, 0) + nbytes
    for name in sorted(sets):
        yield f"{root.rstrip('/')}/{name}", sets[name]


def nbytes_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@dataclass(frozen=True)
class Staged:
    """Remains under `.staging`: what a writer has written so far, or an old feature set that is to go.

    Attributes:
        of: the feature set that it belongs to.
        lock: file that is locked by whoever works on it.
    """

    folder: Path
    of: Path
    lock: Path

    def state(self) -> str:
        """How far it is, and whether somebody works on it, in words."""
        who = holder(self.lock)
        working = f"being written by {who}" if who else "nobody writes it"
        if self.folder.name.startswith(REMOVED):
            return "half removed" + (f", {working}" if who else "")
        if not (self.folder / JOURNAL).is_file():
            return f"replaced by the one at {self.of}, or not begun; {working}"
        try:
            done, n_units = _progress(self.folder)
        except (StoreError, KeyError, TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError, OverflowError):
            return f"its journal is damaged; {working}"
        return f"{done} of {n_units} units done, {working}"


def _progress(folder: Path) -> tuple[int, int]:
    """Units of which all arrays are journalled, and units of the whole set."""
    header, *records = read_records(folder)
    shape, _, shard_rows, _ = next(iter(header["arrays"].values()))
    written: dict[int, set[str]] = {}
    for record in records:
        written.setdefault(record["unit"], set()).update(shard["array"] for shard in record["shards"])
    return sum(names >= set(header["arrays"]) for names in written.values()), math.ceil(shape[0] / shard_rows)


def staged_in(folder: Path) -> list[Staged]:
    """What is unfinished of the feature sets in a folder."""
    found = []
    for entry in sorted((folder / STAGING).glob("*")):
        if entry.is_dir() and (matched := re.fullmatch(rf"(?:{re.escape(REMOVED)})?(.+)-([0-9a-f]{{32}})", entry.name)):
            lock = entry.with_name(f"{matched[1]}-{matched[2]}.lock")
            found.append(Staged(entry, folder / matched[1], lock))
    return found


def staged_below(root: Path) -> list[Staged]:
    """What is unfinished of the feature sets below a folder, in the order of their names."""
    found = []
    for folder, below, _ in os.walk(root):
        if STAGING in below:
            found += staged_in(Path(folder))
        below[:] = sorted(name for name in below if not name.startswith(".") and not is_feature_set(Path(folder, name)))
    return found
