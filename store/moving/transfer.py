"""Feature sets between places: fetching one, or some kinds of its arrays, to a folder, and copying one to a root.

Shards are read in pieces that are checked, several files at a time, and none is sent twice.
"""

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from store.errors import StoreError, unknown
from store.format.array import ArrayReader
from store.format.layout import GROUP, KINDS, groups_of, kind_of
from store.format.reader import FeatureStore
from store.format.unfinished import holds_only, is_of_writers
from store.moving.receipt import Receipt
from store.places import LocalFolder, place_at
from store.places.disk import exchange, remove_partials, sync_folder, write_file
from store.places.object_store import ObjectStore
from store.places.place import aligned_memory, map_parallel
from store.writing.claims import alone
from store.writing.publishing import Found, check_own, discard, discard_records, publish
from store.writing.shard import is_whole

PULLED = ".pull"  # folder next to the sets, for what is being fetched
Progress = Callable[[int], None]
PIECE_NBYTES = 16 << 20  # read at once: a request of an object store costs as much as some MB
AT_ONCE = 8  # files; one connection does not fill a network


def pull(address: str, folder: Path, kinds: Sequence[str] | None = None, progress: Progress | None = None) -> FeatureStore:
    """Fetch a set, or some kinds of its arrays, into a local folder, and open it.

    Kinds that the folder has already are left alone. Others are fetched next to it and moved in when they are whole; an
    interrupted fetch is resumed. Every row is compared with its digest before it is written.

    Args:
        folder: absent, empty, a stub of the set, or a copy that lacks kinds.
        kinds: `images`, `patch`, …; all by default.
        progress: called with numbers of bytes, also of those that the folder has already.

    Raises:
        StoreError: as opening it; unknown kinds; another set, or files of others, are in the folder, or come meanwhile; too
            little space; damaged rows.
    """
    source, progress = FeatureStore.open(address, verify="always"), progress or (lambda n: None)
    content = source.place.content("zarr.json") or b""
    chosen = checked_kinds(source, kinds)
    file, found = folder / "zarr.json", Found.at(folder, replaces=False)
    if file.is_file() and file.read_bytes() != content:
        raise StoreError(f"{folder} holds another feature set than {address}; remove it first: beyondcls store rm {folder}")
    if not file.is_file() and not holds_only(folder):
        raise StoreError(f"{folder} already holds files that are not a feature set; name another folder with --to")
    present = _present_kinds(folder, source) if file.is_file() else set()
    arrays = [array for array in source.arrays.values() if kind_of(array.name) in chosen]
    missing = [array for array in arrays if kind_of(array.name) not in present]
    fetched = [kind for kind in chosen if kind not in present]
    staging = folder.parent / PULLED / f"{folder.name}-{source.spec.key}"
    with alone(staging, str(folder)):
        _fetch(missing, staging, progress)
        progress(sum(shard["nbytes"] for array in arrays if array not in missing for shard in array.shards))
        for kind in set(KINDS) - set(fetched):  # which an earlier fetch has left
            shutil.rmtree(staging / kind, ignore_errors=True)
        for name, text in _metadata_files(source, fetched).items():
            write_file(staging / name, [text])
        remove_partials(staging)
        if file.is_file():
            _move_kinds(staging, folder, fetched)
        else:
            write_file(staging / "zarr.json", [content])
            publish(staging, folder, found, "the same command with another --to fetches it again")
    with contextlib.suppress(OSError):  # not empty, or not there
        staging.parent.rmdir()
    return FeatureStore.open(folder)


def checked_kinds(store: FeatureStore, kinds: Sequence[str] | None) -> list[str]:
    """Kinds in the order of `KINDS`: those named, or all; refused if the set has no such kind, or this copy lacks it."""
    for kind in kinds or ():
        if kind not in KINDS:
            raise StoreError(unknown("kind of arrays", kind, KINDS))
    chosen = [kind for kind in KINDS if kinds is None or kind in kinds]
    for kind in chosen:
        names = [name for name in store.attributes["arrays"] if kind_of(name) == kind]
        if kinds is not None and not names:
            raise StoreError(f"{store.where} has no {kind}: its encoder has none, or it was extracted without")
        if missing := [name for name in names if name not in store.arrays]:
            raise StoreError(f"{store.place.address(missing[0])} is missing; extract it again, or name another root")
    return chosen


def _present_kinds(folder: Path, source: FeatureStore) -> set[str]:
    """Kinds of which the folder has all that the source has, whole as far as file sizes show."""
    present = set(KINDS)
    local = FeatureStore.describe(folder)
    for name in source.attributes["arrays"]:
        try:
            array = local.add(name)
            if any(array.problem(shard) for shard in range(array.layout.n_shards)):
                present.discard(kind_of(name))
        except StoreError:
            present.discard(kind_of(name))
    return {kind for kind in present if (folder / kind / "zarr.json").is_file()}


def _fetch(arrays: Sequence[ArrayReader], staging: Path, progress: Progress) -> None:
    todo, place = [], place_at(staging)
    for array in arrays:
        for shard in range(array.layout.n_shards):
            if is_whole(place, array.layout, shard, array.shards[shard]["xxh3_128"]):
                progress(array.layout.nbytes(shard))
            else:
                todo.append((array, shard))
    todo_nbytes = sum(array.layout.nbytes(shard) for array, shard in todo)
    if todo_nbytes > (free := shutil.disk_usage(next(f for f in staging.absolute().parents if f.exists())).free):
        raise StoreError(
            f"{todo_nbytes / 1e9:.3g} GB are to be fetched to {staging.parent}, {free / 1e9:.3g} GB are free there; free some, "
            "fetch fewer kinds with --kinds, or name another folder with --to"
        )

    def fetch(item: tuple[ArrayReader, int]) -> None:
        array, shard = item

        def reported_pieces() -> Iterator[memoryview | bytes]:
            for piece in pieces(array, shard):
                yield piece
                progress(len(piece))

        try:
            write_file(staging / array.layout.file(shard), reported_pieces())
        except OSError as error:
            raise StoreError(
                f"{staging / array.layout.file(shard)} cannot be written ({error.strerror}); free some space, and give the "
                "command again: it goes on where it was"
            ) from error

    deque(map_parallel(fetch, todo, AT_ONCE), maxlen=0)


def _metadata_files(store: FeatureStore, kinds: Sequence[str] = KINDS) -> dict[str, bytes]:
    """The zarr.json of groups and arrays of these kinds, by their names."""
    names = [name for name in store.arrays if kind_of(name) in kinds]
    groups = {f"{group}/zarr.json": GROUP for group in groups_of(names) if group.split("/")[0] in kinds}
    return groups | {f"{name}/zarr.json": store.place.content(f"{name}/zarr.json") or b"" for name in names}


def _move_kinds(staging: Path, folder: Path, kinds: Sequence[str]) -> None:
    """Move kinds that were fetched into a stub, or into a copy that lacks them; files of others stay, and are an error."""
    for kind in kinds:
        if (folder / kind).exists():  # a stub's, or damaged
            check_own(folder, kind)
            exchange(staging / kind, folder / kind)
        else:
            os.rename(staging / kind, folder / kind)
    for kind in KINDS:  # a stub's: a folder means that its kind is present
        with contextlib.suppress(OSError):  # not empty, or not there
            (folder / kind).rmdir()
    sync_folder(folder)
    discard(staging)


def upload(store: FeatureStore, address: str, progress: Progress | None = None) -> None:
    """Copy a finished local set to a folder or an object store, the group's zarr.json last: before, it is not a feature set.

    A shard that is there already counts if it has the size and the tail (digests of all its rows) of ours; so an interrupted
    upload is resumed, and shards with other bytes are replaced. Every row is compared with its digest before it is sent.

    Args:
        address: where the set will be, by convention ROOT/NAME-KEY.
        progress: called with numbers of bytes, also of those that were there already.

    Raises:
        StoreError: arrays are missing or damaged; the address holds another set or foreign files; or writing fails.
    """
    source, report = FeatureStore.open(store.path, verify="always"), progress or (lambda n: None)
    receipt, content = Receipt.from_store(source), source.place.content("zarr.json") or b""
    place = place_at(address)
    if (uploaded := place.content("zarr.json")) not in (None, content):
        raise StoreError(f"{address} holds another feature set, or one that was changed; remove it, or choose another root")
    small = _metadata_files(source)
    shards = [(array, shard) for array in source.arrays.values() for shard in range(array.layout.n_shards)]
    expected = {array.layout.file(shard): array.layout.nbytes(shard) for array, shard in shards}
    expected |= {name: len(text) for name, text in small.items()}
    present = place.sizes().keys()
    if foreign := sorted(name for name in present - expected.keys() - {"zarr.json"} if not is_of_writers(name)):
        raise StoreError(
            f"{address} holds {len(foreign)} files that do not belong to this set, first {foreign[0]}; "
            "did an upload with other shards stop there? Remove them, or choose another root"
        )

    def send(item: tuple[ArrayReader, int]) -> None:
        array, shard = item
        if not is_whole(place, array.layout, shard, array.shards[shard]["xxh3_128"]):
            place.put(array.layout.file(shard), pieces(array, shard), array.layout.nbytes(shard))
        report(array.layout.nbytes(shard))

    largest = max(array.layout.nbytes(shard) for array, shard in shards)
    deque(map_parallel(send, shards, place.writers(largest)), maxlen=0)
    differing = [name for name in small if place.content(name) != small[name]]
    deque(map_parallel(lambda name: place.put(name, [small[name]], len(small[name])), differing, AT_ONCE), maxlen=0)
    sizes = place.sizes()
    if wrong := sorted(name for name, nbytes in expected.items() if sizes.get(name) != nbytes):
        raise StoreError(
            f"{address}/{wrong[0]} has {sizes.get(wrong[0], 'no')} bytes after it was sent, expected {expected[wrong[0]]} "
            f"({len(wrong)} such files); give the command again"
        )
    if isinstance(place, LocalFolder):
        remove_partials(place.folder)
    if uploaded is None:
        place.put("zarr.json", [content], len(content))
    if isinstance(place, ObjectStore) and any(map(is_of_writers, present)):  # of tasks that began to write it there
        discard_records(place)
    receipt.check(FeatureStore.open(address, receipt.key), whole=True)


def pieces(array: ArrayReader, shard: int) -> Iterator[memoryview | bytes]:
    """The bytes of a shard file in order, each compared with its digest. A piece is valid until the next is asked for."""
    layout = array.layout
    tail = array.tail(shard, array.place.open(layout.file(shard)))
    start, stop = layout.rows(shard)
    n = max(1, PIECE_NBYTES // (layout.checked_rows * layout.row_nbytes)) * layout.checked_rows
    scratch = aligned_memory(array.scratch_nbytes(min(n, stop - start)))
    for row in range(start, stop, n):
        yield array.fetch(row, min(row + n, stop), scratch)
    yield bytes(layout.data_nbytes(shard) - (stop - start) * layout.row_nbytes)
    yield tail
