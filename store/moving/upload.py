"""Copying a finished feature set to a shared folder or an object store."""

from collections import deque
from collections.abc import Callable

from store.errors import StoreError
from store.format.array import ArrayReader
from store.format.layout import GROUP, groups_of
from store.format.reader import FeatureStore
from store.format.unfinished import is_of_writers
from store.moving.receipt import Receipt
from store.moving.transfer import AT_ONCE, has_shard, pieces
from store.places import LocalFolder, place_at
from store.places.disk import remove_partials
from store.places.object_store import ObjectStore
from store.places.parallel import map_parallel
from store.writing.publishing import discard_records

MEMORY = 1 << 30  # bytes that shards on their way to an object store may take


def upload(store: FeatureStore, address: str, progress: Callable[[int], None] | None = None) -> None:
    """Copy a finished local set to a folder or an object store, the group's zarr.json last: before, it is not a feature set.

    A shard that is there already counts if it has the size and the tail (digests of all its rows) of ours; so an interrupted
    upload is resumed, and shards with other bytes are replaced. Every row is compared with its digest before it is sent.

    Args:
        address: where the set will be, by convention ROOT/NAME-KEY.
        progress: called with numbers of bytes, also of those that were there already.

    Raises:
        StoreError: arrays are missing or damaged; the address holds another set or foreign files; or writing fails.
    """
    source = FeatureStore.open(store.path, verify="always")
    receipt, content = Receipt.from_store(source), source.place.content("zarr.json") or b""
    place = place_at(address)
    if (uploaded := place.content("zarr.json")) not in (None, content):
        raise StoreError(f"{address} holds another feature set, or one that was changed; remove it, or choose another root")
    small = {f"{group}/zarr.json": GROUP for group in groups_of(list(source.arrays))}
    small |= {f"{name}/zarr.json": source.place.content(f"{name}/zarr.json") or b"" for name in source.arrays}
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
        if not has_shard(place, array, shard):
            place.put(array.layout.file(shard), pieces(array, shard), array.layout.nbytes(shard))
        if progress is not None:
            progress(array.layout.nbytes(shard))

    largest = max(array.layout.nbytes(shard) for array, shard in shards)
    deque(map_parallel(send, shards, max(1, min(AT_ONCE, MEMORY // largest))), maxlen=0)
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
