"""Fetching a feature set, or some kinds of its arrays, to a local folder."""

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from store.errors import StoreError, unknown
from store.format.array import ArrayReader
from store.format.layout import GROUP, KINDS, groups_of
from store.format.names import kind_of
from store.format.reader import FeatureStore
from store.format.stub import holds_only
from store.moving.transfer import AT_ONCE, is_there, pieces
from store.places import place_at
from store.places.disk import sync_folder, write_file
from store.places.parallel import each
from store.writing.lock import Lock

PULLED = ".pull"  # folder beside the sets, for what is being fetched

Progress = Callable[[int], None]


def pull(address: str, folder: Path, kinds: Sequence[str] | None = None, progress: Progress | None = None) -> FeatureStore:
    """Fetch a set, or some kinds of its arrays, into a local folder, and open it.

    Kinds that the folder has already are left alone. Others are fetched beside it and moved in when they are whole; an
    interrupted fetch goes on where it was. Every row is compared with its digest before it is written.

    Args:
        folder: absent, empty, a stub of the set, or a copy that lacks kinds.
        kinds: `images`, `patch`, …; all by default.
        progress: called with bytes, of those that were here already too.

    Raises:
        StoreError: as opening it; unknown kinds; another set is in the folder; too little space; damaged rows.
    """
    source = FeatureStore.open(address, verify="always")
    content = source.place.content("zarr.json") or b""
    wanted = checked_kinds(source, kinds)
    file = folder / "zarr.json"
    if file.is_file() and file.read_bytes() != content:
        raise StoreError(f"{folder} holds another feature set than {address}; remove it first: beyondcls store rm {folder}")
    if not file.is_file() and not holds_only(folder):
        raise StoreError(f"{folder} already holds files that are no feature set; name another folder with --to")
    here = _kinds_here(folder, source) if file.is_file() else set()
    arrays = [array for array in source.arrays.values() if kind_of(array.name) in wanted]
    lacking = [array for array in arrays if kind_of(array.name) not in here]
    staging = folder.parent / PULLED / f"{folder.name}-{source.spec.key}"
    lock = Lock(staging.with_name(f"{staging.name}.lock"), str(folder))
    try:
        _fetch(lacking, staging, progress or (lambda n: None))
        if progress is not None:
            progress(sum(shard["nbytes"] for array in arrays if array not in lacking for shard in array.shards))
        fetched = [kind for kind in wanted if kind not in here]
        _describe(staging, fetched, source)
        if file.is_file():
            _move_in(staging, folder, fetched)
        else:
            write_file(staging / "zarr.json", [content])
            shutil.rmtree(folder, ignore_errors=True)  # empty folders only
            os.rename(staging, folder)
            sync_folder(folder.parent)
    finally:
        lock.release()
        if staging.parent.is_dir() and not any(staging.parent.iterdir()):
            staging.parent.rmdir()
    return FeatureStore.open(folder)


def checked_kinds(store: FeatureStore, kinds: Sequence[str] | None) -> list[str]:
    """Kinds in the order of `KINDS`: those named, or all.

    Raises:
        StoreError: the set has no such kind, or not there.
    """
    for kind in kinds or ():
        if kind not in KINDS:
            raise StoreError(unknown("kind of arrays", kind, KINDS))
    wanted = [kind for kind in KINDS if kinds is None or kind in kinds]
    for kind in wanted:
        names = [name for name in store.attributes["arrays"] if kind_of(name) == kind]
        if kinds is not None and not names:
            raise StoreError(f"{store.where} has no {kind}: its encoder has none, or it was extracted without")
        if missing := [name for name in names if name not in store.arrays]:
            raise StoreError(f"{store.place.address(missing[0])} is missing; extract it again, or name another root")
    return wanted


def _kinds_here(folder: Path, source: FeatureStore) -> set[str]:
    """Kinds of which the folder has all that the source has, whole as far as sizes tell."""
    here = set(KINDS)
    local = FeatureStore.describe(folder)
    for name in source.attributes["arrays"]:
        try:
            array = local.add(name)
            if any(array.problem(shard) for shard in range(array.layout.n_shards)):
                here.discard(kind_of(name))
        except StoreError:
            here.discard(kind_of(name))
    return {kind for kind in here if (folder / kind / "zarr.json").is_file()}


def _fetch(arrays: Sequence[ArrayReader], staging: Path, progress: Progress) -> None:
    """Write arrays below a folder, but what is there already."""
    todo, there = [], place_at(staging)
    for array in arrays:
        for shard in range(array.layout.n_shards):
            if is_there(there, array, shard):
                progress(array.layout.nbytes(shard))
            else:
                todo.append((array, shard))
    needed = sum(array.layout.nbytes(shard) for array, shard in todo)
    if needed > (free := shutil.disk_usage(_existing(staging)).free):
        raise StoreError(
            f"{needed / 1e9:.3g} GB are to be fetched to {staging.parent}, {free / 1e9:.3g} GB are free there; free some, "
            "fetch fewer kinds with --kinds, or name another folder with --to"
        )

    def fetch(item: tuple[ArrayReader, int]) -> None:
        array, shard = item

        def told() -> Iterator[memoryview | bytes]:
            for piece in pieces(array, shard):
                yield piece
                progress(len(piece))

        try:
            write_file(staging / array.layout.file(shard), told())
        except OSError as error:
            raise StoreError(
                f"{staging / array.layout.file(shard)} cannot be written ({error.strerror}); free some space, and give the "
                "command again: it goes on where it was"
            ) from error

    deque(each(fetch, todo, AT_ONCE), maxlen=0)


def _describe(staging: Path, kinds: Sequence[str], source: FeatureStore) -> None:
    """Write the zarr.json of kinds that were fetched; what an earlier fetch has left of others goes."""
    for kind in KINDS:
        if kind not in kinds:
            shutil.rmtree(staging / kind, ignore_errors=True)
    names = [name for name in source.arrays if kind_of(name) in kinds]
    for name in names:
        write_file(staging / name / "zarr.json", [source.place.content(f"{name}/zarr.json") or b""])
    for group in (group for group in groups_of(names) if group.split("/")[0] in kinds):
        write_file(staging / group / "zarr.json", [GROUP])


def _move_in(staging: Path, folder: Path, kinds: Sequence[str]) -> None:
    """Give kinds that were fetched their place in a stub, or in a copy that lacks them."""
    for kind in kinds:
        if (folder / kind).exists():  # a stub's, or damaged
            shutil.rmtree(folder / kind)
        os.rename(staging / kind, folder / kind)
    for kind in KINDS:  # a stub's: a folder says that its kind is there
        if (folder / kind).is_dir() and not any((folder / kind).iterdir()):
            (folder / kind).rmdir()
    sync_folder(folder)
    shutil.rmtree(staging, ignore_errors=True)


def _existing(folder: Path) -> Path:
    return next(f for f in (folder, *folder.absolute().parents) if f.exists())
