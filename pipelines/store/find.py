"""Which folders are feature sets, and which are the remains of unfinished work on one."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from store.format.layout import ATTRIBUTE, GROUP, KINDS
from store.format.unfinished import HEADER, progress_at
from store.moving.transfer import AT_ONCE
from store.places import LocalFolder, is_remote
from store.places.disk import TOKEN, content_of
from store.places.object_store import ObjectStore
from store.places.place import map_parallel
from store.writing.claims import holder
from store.writing.publishing import PUBLISHING, STAGING

AT_ROOT = re.compile(r"([^.].*)-([0-9a-f]{32})", re.ASCII)  # NAME-KEY
REMOVED = ".removed-"  # what the name of a feature set begins with once its removal has begun


def is_feature_set(folder: Path) -> bool:
    """Whether a folder is a feature set, even a damaged one, by its zarr.json or by the groups of two kinds of arrays."""
    content = content_of(folder / "zarr.json") or b""
    if re.search(rb'"node_type":\s*"group"', content) and f'"{ATTRIBUTE}"'.encode() in content:
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


@dataclass(frozen=True)
class StoredSet:
    """A feature set, or in an object store what was written of one.

    Attributes:
        content: of its zarr.json; None if it has none.
        used: when it was read last, as far as the file system records that, or written; in an object store the latter.
        files: their names, in an object store.
    """

    address: str
    content: bytes | None
    nbytes: int
    used: datetime | None
    files: tuple[str, ...] = ()

    @classmethod
    def in_folder(cls, path: Path) -> "StoredSet":
        shards = [file.stat() for file in path.rglob("c/**/*") if file.is_file()]
        times = [datetime.fromtimestamp(max(shard.st_atime, shard.st_mtime), UTC) for shard in shards]
        return cls(str(path), content_of(path / "zarr.json"), nbytes_of(path), max(times, default=None))

    @classmethod
    def at_root(cls, root: str) -> "list[StoredSet]":
        """Those in an object store, sorted; unfinished uploads are among them. A StoreError if it cannot be listed."""
        place = ObjectStore(root)
        sizes, times = place.sizes(), place.times()
        sets: dict[str, list[str]] = {}
        for file in sorted(sizes):
            name, _, rest = file.partition("/")
            if rest:
                sets.setdefault(name, []).append(rest)

        def look(name: str) -> "StoredSet":
            address, files = f"{root}/{name}", sets[name]
            content = ObjectStore(address).content("zarr.json") if "zarr.json" in files else None
            written = [at for file in files if (at := times.get(f"{name}/{file}")) is not None]
            nbytes = sum(sizes[f"{name}/{file}"] for file in files)
            return cls(address, content, nbytes, max(written, default=None), tuple(files))

        return list(map_parallel(look, sorted(sets), AT_ONCE))

    @property
    def day(self) -> str:
        """Of its last use, as 2026-01-31; empty if that is not known."""
        return "" if self.used is None else self.used.astimezone().date().isoformat()


def owner_of(address: str) -> str:
    """The user whose files a folder holds; empty for an object store."""
    if is_remote(address):
        return ""
    try:
        return Path(address).owner()
    except KeyError:  # of another machine
        return str(Path(address).stat().st_uid)


def nbytes_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@dataclass(frozen=True)
class Staged:
    """Remains under `.staging`: what writers have written so far, or an old feature set to be removed.

    Attributes:
        feature_set: the feature set that it belongs to.
    """

    folder: Path
    feature_set: Path

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
    named = re.compile(rf"(?:{re.escape(REMOVED)})?(.+)-[0-9a-f]{{32}}(?:{TOKEN}{re.escape(PUBLISHING)})?")
    entries = ((entry, named.fullmatch(entry.name)) for entry in sorted((folder / STAGING).glob("*")) if entry.is_dir())
    return [Staged(entry, folder / matched[1]) for entry, matched in entries if matched]


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
