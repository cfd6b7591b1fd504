"""The disk cache: each byte comes once, the bound holds, and nothing but what was written is ever served."""

import errno
import fcntl
import os
import pickle
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store import ArrayLayout, FeatureStore, Loader, StoreError
from store.places import place_at
from store.places.cache import PARTIAL, DiskCache
from store.places.object_store import ObjectStore
from tests.forked import CONTEXT, start
from tests.store.conftest import flip, same, values, write
from tests.store.service import Service
from tests.store.test_disk import Limited

WIDE = "patch/block5/view0"
N, SHARD = 300, 96  # four shards, the last one short
ARRAYS = [
    ArrayLayout("images/label", (N,), "int64", ("image",), SHARD),
    ArrayLayout(WIDE, (N, 3, 555), "float16", ("image", "patch", "channel"), SHARD, codec="float16"),  # 3,330 bytes a row
]
PLENTY = 1 << 30
WHOLE = ARRAYS[1].nbytes(0)  # bytes of a shard of tokens


@pytest.fixture(autouse=True)
def _fresh_service() -> Iterator[None]:
    Service.reset()
    yield
    Service.reset()


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("sets")
    for i in range(3):
        write(folder / str(i), ARRAYS, values(ARRAYS, i), data=str(i))
    return [folder / str(i) for i in range(3)]


def opened(path: Path, cache: DiskCache, **options: Any) -> FeatureStore:
    return FeatureStore.open(f"service://{path}", cache=cache, **options)


def shards(folder: Path) -> list[Path]:
    return sorted(f for f in folder.glob("*/*") if f.name != "in-use")


def used(folder: Path) -> int:
    """Bytes of all files in the cache's sets, at one moment: under its lock, or what is moved would be seen twice."""
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return sum(f.stat().st_size for f in folder.glob("*/*"))


def of_shards(path: Path) -> int:
    return sum(f.stat().st_size for name in ("images", "patch") for f in path.glob(f"{name}/**/c/**/*") if f.is_file())


def expected(path: Path) -> np.ndarray:
    return FeatureStore.open(path).tokens("patch").all()


@pytest.mark.parametrize("direct", [False, True])
def test_each_byte_is_asked_for_once(sets: list[Path], tmp_path: Path, direct: bool) -> None:
    store = opened(sets[0], cache := DiskCache(tmp_path / "cache", PLENTY))
    labels, stored_values = store.labels, expected(sets[0])
    options: dict[str, Any] = {"block_rows": 3, "buffer_nbytes": 1 << 18, "dtype": None, "direct": direct}
    loader = Loader({"x": store.tokens("patch")}, labels, placement="stream", **options)
    for epoch in range(3):
        for batch in loader.epoch(epoch):
            assert same(batch["x"].numpy(), stored_values[batch["row"].numpy()])
        assert Service.nbytes() == of_shards(sets[0])  # after the first epoch, not one more
    assert used(cache.folder) == of_shards(sets[0])
    again, rows = opened(sets[0], DiskCache(tmp_path / "cache", PLENTY), verify="never"), [5, 299, 4, 95, 96]
    assert same(again.tokens("patch").rows(rows), stored_values[rows])
    assert Service.nbytes() == of_shards(sets[0])


def test_epochs_are_those_of_a_local_set(sets: list[Path], tmp_path: Path) -> None:
    """By default, too: the order does not depend on where a set is."""
    stores = FeatureStore.open(sets[0]), opened(sets[0], DiskCache(tmp_path, PLENTY))
    loaders = [Loader({"x": store.tokens("patch")}, store.labels, batch_size=20, placement="stream") for store in stores]
    for local, other in zip(*(loader.epoch(5) for loader in loaders), strict=True):
        assert all(same(local[name].numpy(), other[name].numpy()) for name in local)


def test_a_set_larger_than_the_cache(sets: list[Path], tmp_path: Path) -> None:
    """What is kept stays; the rest, a shard, is read past it, and no byte more than that."""
    bound = of_shards(sets[0]) - WHOLE + 10_000
    store = opened(sets[0], cache := DiskCache(tmp_path, bound))
    array, stored_values, served = store.tokens("patch"), expected(sets[0]), []
    for _ in range(3):
        before = Service.nbytes()
        assert same(array.all(), stored_values)
        served.append(Service.nbytes() - before)
        assert used(cache.folder) <= bound
    assert 0 < served[1] == served[2] <= WHOLE
    assert used(cache.folder) >= 2 * WHOLE
    del store, array  # it is used no more
    DiskCache(tmp_path, WHOLE + 10_000)  # a smaller bound than last time
    assert 0 < used(tmp_path) <= WHOLE + 10_000


def test_a_set_that_nobody_uses_makes_room(sets: list[Path], tmp_path: Path) -> None:
    bound = int(2.5 * of_shards(sets[0]))
    cache, kept = DiskCache(tmp_path, bound), {}
    for i in (0, 1):
        store = opened(sets[i], cache)
        assert same(store.tokens("patch").all(), expected(sets[i]))
        kept[i] = store.place.cached.folder.name  # type: ignore[attr-defined]
        os.utime(tmp_path / kept[i] / "in-use", (i, i))
        del store
    in_use = opened(sets[1], cache)  # used longest ago, but now again
    os.utime(tmp_path / kept[1] / "in-use", (-5, -5))
    opened(sets[2], cache).tokens("patch").all()
    assert used(tmp_path) <= bound
    Service.reset()
    assert same(in_use.tokens("patch").all(), expected(sets[1]))
    assert same(opened(sets[2], cache).tokens("patch").all(), expected(sets[2]))
    assert Service.nbytes() == 0  # both are here still
    opened(sets[0], cache).tokens("patch").all()
    assert Service.nbytes() > 0


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": lambda shard: flip(shard, WHOLE // 2),
    "digest": lambda shard: flip(shard, ARRAYS[1].data_nbytes(0) + 3),
    "cut": lambda shard: os.truncate(shard, WHOLE - 9),
    "longer": lambda shard: os.truncate(shard, WHOLE + 1),
    "gone": lambda shard: shard.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_shard_is_fetched_again(sets: list[Path], tmp_path: Path, damage: Callable[[Path], object]) -> None:
    opened(sets[0], DiskCache(tmp_path, PLENTY)).tokens("patch").all()
    shard = next(s for s in shards(tmp_path) if s.stat().st_size == WHOLE)
    content = shard.read_bytes()
    damage(shard)
    Service.reset()
    array = opened(sets[0], DiskCache(tmp_path, PLENTY)).tokens("patch")
    for again in (array, array, pickle.loads(pickle.dumps(array))):  # as sent to another process
        assert same(again.all(), expected(sets[0]))
    assert Service.nbytes() == WHOLE
    assert shard.read_bytes() == content
    for shard in shards(tmp_path):  # they go while they are used
        shard.unlink()
    assert same(array.all(), expected(sets[0]))


def test_damage_of_the_original_is_an_error(sets: list[Path], tmp_path: Path) -> None:
    flip(shutil.copytree(sets[0], tmp_path / "set") / WIDE / "c/0/0/0", WHOLE // 2)
    array = opened(tmp_path / "set", DiskCache(tmp_path / "cache", PLENTY)).tokens("patch")
    for _ in range(2):
        with pytest.raises(StoreError, match="is damaged"):
            array.all()


def test_another_set_at_the_same_place(sets: list[Path], tmp_path: Path) -> None:
    folder, cache = tmp_path / "set", DiskCache(tmp_path / "cache", PLENTY)
    for path in sets:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(path, folder)
        assert same(opened(folder, cache).tokens("patch").all(), expected(path))
    moved = shutil.copytree(folder, tmp_path / "moved")  # and the same set at another place
    Service.reset()
    assert same(opened(moved, cache).tokens("patch").all(), expected(path))
    assert Service.nbytes() == 0


def test_names_stay_inside(sets: list[Path], tmp_path: Path) -> None:
    opened(sets[0], DiskCache(tmp_path / "cache", PLENTY)).tokens("patch").all()
    for file in (tmp_path / "cache").rglob("*"):
        assert all(set(part) <= set("0123456789abcdef-") for part in file.parts[-1:] if part not in ("lock", "in-use"))
    place = place_at(f"service://{sets[0]}")
    assert isinstance(place, ObjectStore)
    place.keep_in(DiskCache(tmp_path / "cache", PLENTY), "../../x", "/etc")
    assert place.cached is not None
    assert not set(place.cached.file("../../x").relative_to(tmp_path / "cache").as_posix()) - set("0123456789abcdef/")


def test_a_local_set_has_no_use_for_it(sets: list[Path], tmp_path: Path) -> None:
    FeatureStore.open(sets[0], cache=DiskCache(tmp_path, PLENTY)).tokens("patch").all()
    assert not shards(tmp_path)


def test_threads_share_a_fetch(sets: list[Path], tmp_path: Path) -> None:
    array = opened(sets[0], DiskCache(tmp_path, PLENTY)).tokens("patch")
    Service.reset()
    Service.delay = 0.05
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: array.rows([i]), range(8)))
    assert len(Service.data()) == 1


def test_a_lost_connection(sets: list[Path], tmp_path: Path) -> None:
    array = opened(sets[0], DiskCache(tmp_path, PLENTY)).tokens("patch")
    Service.answer = staticmethod(lambda _, data: data[:-1])
    with pytest.raises(StoreError, match=r"c/\d/0/0 returned \d+ bytes, expected"):
        array.all()
    assert not shards(tmp_path)
    assert not list(tmp_path.glob(f"*/*{PARTIAL}"))
    Service.reset()
    assert same(array.all(), expected(sets[0]))


def test_no_bytes_or_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, nbytes, message in (("new", 0, "of 0 bytes"), ("file", 5, "file cannot be used as a disk cache")):
        with pytest.raises(StoreError, match=message):
            DiskCache(tmp_path / name, nbytes)


def test_a_full_disk(sets: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = opened(sets[0], DiskCache(tmp_path, PLENTY)).tokens("patch")
    monkeypatch.setattr(os, "write", Limited("write", 1, errno.ENOSPC))
    with pytest.warns(RuntimeWarning, match=r"keeps nothing more \(No space left on device\); reading goes on") as warned:
        read = [array.all() for _ in range(2)]
    assert len(warned) == 1
    assert all(same(one, expected(sets[0])) for one in read)
    assert not list(tmp_path.glob(f"*/*{PARTIAL}"))


def read_thrice(path: Path, folder: Path, bound: int, begin: Barrier) -> None:
    array = opened(path, DiskCache(folder, bound), verify="never").tokens("patch")
    begin.wait()
    Service.delay = 0.05  # so that they meet
    with warnings.catch_warnings(action="error"):
        for _ in range(3):
            assert same(array.all(), expected(path))


def hang_in_a_write(path: Path, folder: Path, n: int, written: Event) -> None:
    """The n-th write ends half-way, and never returns."""
    array, write_ = opened(path, DiskCache(folder, PLENTY)).tokens("patch"), os.write

    def slow(descriptor: int, data: bytes) -> int:
        nonlocal n
        n -= 1
        if n < 0:
            write_(descriptor, data[: len(data) // 2])
            written.set()
            time.sleep(60)
        return write_(descriptor, data)

    os.write = slow
    array.all()


@pytest.mark.parametrize("bound", [PLENTY, 2 * WHOLE + 9_000])
def test_several_processes(sets: list[Path], tmp_path: Path, bound: int) -> None:
    DiskCache(tmp_path, bound)
    begin, most = CONTEXT.Barrier(3), 0
    children = [start(read_thrice, sets[i], tmp_path, bound, begin) for i in (0, 0, 1)]
    while any(child.is_alive() for child in children):
        most = max(most, used(tmp_path))
        time.sleep(0.002)  # the lock is theirs meanwhile
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert WHOLE < most <= bound
    if bound == PLENTY:
        Service.reset()
        opened(sets[0], DiskCache(tmp_path, bound), verify="never").tokens("patch").all()
        assert Service.nbytes() == 0


@pytest.mark.parametrize("n", [0, 3])
def test_killed_while_it_writes(sets: list[Path], tmp_path: Path, n: int) -> None:
    child = start(hang_in_a_write, sets[0], tmp_path, n, written := CONTEXT.Event())
    assert written.wait(60)
    running = DiskCache(tmp_path, PLENTY)  # of a process that is there meanwhile: halves are not its to remove
    assert list(tmp_path.glob(f"*/*{PARTIAL}"))
    child.kill()
    child.join()
    for _ in range(2):
        assert same(opened(sets[0], running, verify="never").tokens("patch").all(), expected(sets[0]))
        DiskCache(tmp_path, PLENTY)
        assert not list(tmp_path.glob(f"*/*{PARTIAL}"))


def test_a_set_read_for_long_was_used_lately(sets: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = opened(sets[0], DiskCache(tmp_path, PLENTY)).tokens("patch")
    (mark,) = tmp_path.glob("*/in-use")
    os.utime(mark, (5, 5))
    array.all()
    assert mark.stat().st_mtime == 5  # not at each read
    monkeypatch.setattr("store.places.cache.TOUCH_S", -1)
    array.all()
    assert mark.stat().st_mtime > time.time() - 60
