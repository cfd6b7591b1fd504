"""Which folders are feature sets, and which are the remains of unfinished work on one."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from store.format.layout import ATTRIBUTE, GROUP, KINDS
from store.format.unfinished import HEADER, progress_at
from store.places import LocalFolder, place_at
from store.places.disk import TOKEN
from store.writing.claims import holder
from store.writing.publishing import PUBLISHING, STAGING

REMOVED = ".removed-"  # what the name of a feature set begins with once its removal has begun


def is_feature_set(folder: Path) -> bool:
    """Whether a folder is a feature set, even a damaged one, by its zarr.json or by the groups of two kinds of arrays."""
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
    for folder, subfolders, _ in os.walk(root):
        if is_feature_set(Path(folder)):
            subfolders.clear()
            yield Path(folder)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))


def files_of_sets(root: str) -> dict[str, dict[str, int]]:
    """Bytes of the files of each set in a folder of an object store, by name, sorted; unfinished uploads are among them.

    Raises:
        StoreError: it cannot be listed.
    """
    sets: dict[str, dict[str, int]] = {}
    for name, nbytes in sorted(place_at(root).sizes().items()):
        set_name, _, rest = name.partition("/")
        if rest:
            sets.setdefault(set_name, {})[rest] = nbytes
    return dict(sorted(sets.items()))


def nbytes_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@dataclass(frozen=True)
class Staged:
    """Remains under `.staging`: what writers have written so far, or an old feature set to be removed.

    Attributes:
        feature_set: the feature set that it belongs to.
        key: of it.
    """

    folder: Path
    feature_set: Path
    key: str

    @property
    def writer(self) -> str | None:
        """Who is writing it, as text."""
        return holder(LocalFolder(self.folder))

    def state(self) -> str:
        """Its progress, and whether a process is writing it, in words."""
        writer = self.writer
        working = f"being written by {writer}" if writer else "nobody writes it"
        if self.folder.name.startswith(REMOVED):
            return "half removed" + (f", {working}" if writer else "")
        if not (self.folder / HEADER).is_file():
            return f"replaced by the one at {self.feature_set}, or not begun; {working}"
        if (progress := progress_at(LocalFolder(self.folder))) is None:
            return f"its header is damaged; {working}"
        return f"{progress.done} of {progress.n_units} units done, {working}"


def staged_in(folder: Path) -> list[Staged]:
    """Unfinished work on the feature sets in a folder."""
    named = re.compile(rf"(?:{re.escape(REMOVED)})?(.+)-([0-9a-f]{{32}})(?:{TOKEN}{re.escape(PUBLISHING)})?")
    entries = ((entry, named.fullmatch(entry.name)) for entry in sorted((folder / STAGING).glob("*")) if entry.is_dir())
    return [Staged(entry, folder / matched[1], matched[2]) for entry, matched in entries if matched]


def staged_below(root: Path) -> list[Staged]:
    """Unfinished work on the feature sets below a folder, in the order of their names."""
    staged = []
    for folder, subfolders, _ in os.walk(root):
        if STAGING in subfolders:
            staged += staged_in(Path(folder))
        subfolders[:] = sorted(
            name for name in subfolders if not name.startswith(".") and not is_feature_set(Path(folder, name))
        )
    return staged
