"""Many reads are in flight, straight to their places where the disk allows it; memory is used again, never in use."""

import errno
import gc
import os
import shutil
import threading
import zlib

import numpy as np
import pytest

from store import ArrayLayout, FeatureStore, Loader, StoreError
from store.format.array import ArrayReader
from store.loading.reading import CACHED_READS, DISK_READS, Pool
from store.places import local
from store.places.place import SECTOR, aligned_memory, is_aligned
from tests.store.conftest import flip, same, write

N, NAME = 160, "patch/block5/view0"
ROW_NBYTES = 66 * SECTOR  # no whole pages, and more than 64 KiB with its neighbour


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(N, ROW_NBYTES // 2)).astype("float16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("ahead") / "s"
    write(folder, [ArrayLayout(NAME, rows.shape, "float16", ("image", "channel"), 64, codec="float16")], {NAME: rows})
    return folder


def loader_of(folder, verify="first", **options):
    array = FeatureStore.open(folder, verify=verify).array(NAME)
    return Loader({"x": array}, np.arange(N), **{"placement": "stream", "dtype": None, "batch_size": 32, **options})


def assert_right(loader, rows):
    batches = list(loader.epoch())
    assert all(same(batch["x"].numpy(), rows[batch["row"].numpy()]) for batch in batches)
    assert sum(len(batch["row"]) for batch in batches) == len(loader.rows)


@pytest.fixture
def preadv(monkeypatch):
    """Has a function called before each read, with the same arguments."""
    real = os.preadv
    return lambda before: monkeypatch.setattr(os, "preadv", lambda *given: (before(*given), real(*given))[1])


@pytest.mark.parametrize(("direct", "n_reads"), [(True, DISK_READS), (False, CACHED_READS)])
def test_reads_in_flight(folder, rows, preadv, direct, n_reads):
    """As many as promised: each waits, the first time, for the others."""
    together, passed = threading.Barrier(n_reads), threading.Event()

    def wait(*_):
        if threading.current_thread().name.startswith("beyondcls-loader") and not passed.is_set():
            together.wait(timeout=20)
            passed.set()

    loader = loader_of(folder, "never", rows=np.arange(0, N, 2), batch_size=20, shuffle=False, direct=direct)
    preadv(wait)
    assert_right(loader, rows)
    assert passed.is_set()


@pytest.mark.parametrize("placement", ["stream", "memory"])
def test_rows_of_whole_sectors_are_read_to_their_places(folder, rows, monkeypatch, placement):
    """Past the page cache too: no row goes through other memory."""
    monkeypatch.setattr(ArrayReader, "fetch", lambda *_: pytest.fail("a copy"))
    assert_right(loader_of(folder, direct=True, placement=placement, block_rows=2), rows)


def test_a_disk_with_larger_sectors(folder, rows, preadv):
    """It refuses what is not whole pages; each file is asked once."""
    refused = []

    def refuse(descriptor, views, offset):
        if offset % 4096 or any(len(view) % 4096 or not is_aligned(view) for view in views):
            refused.append(descriptor)
            raise OSError(errno.EINVAL, "Invalid argument")

    preadv(refuse)
    assert_right(loader_of(folder, direct=True, threads=1, block_rows=2), rows)
    assert len(refused) == len(set(refused)) == 3, "of each shard"


def test_damage_that_comes_between_two_epochs(folder, tmp_path):
    """With "always" it is found; "first" has vouched for those rows already."""
    copy = shutil.copytree(folder, tmp_path / "s")
    first, always = (loader_of(copy, how, batch_size=N) for how in ("first", "always"))
    assert len(list(first.epoch())) == len(list(always.epoch())) == 1
    flip(copy / NAME / "c/1/0", 5)
    assert len(list(first.epoch())) == 1
    with pytest.raises(StoreError, match=r"c/1/0 is damaged \(rows 64 to 65\)"):
        list(always.epoch())


@pytest.mark.parametrize("skip", [(1, 0, 0), (0, 1, 0), (0, 0, 1)], ids=["offset", "address", "length"])
def test_what_is_not_of_whole_sectors_is_not_asked_for(tmp_path, skip, monkeypatch):
    """Some file systems do not refuse it, but read it through the page cache."""
    (tmp_path / "file").write_bytes(bytes(8 * SECTOR))
    shard = local.LocalShard(tmp_path / "file", direct=True)
    if not shard.direct:
        pytest.skip("this file system has a page cache only")
    (offset, address, length), memory = skip, aligned_memory(4 * SECTOR)
    assert shard.read_into(SECTOR, [memory[SECTOR : 3 * SECTOR]])
    monkeypatch.setattr(os, "preadv", lambda *_: pytest.fail("asked for"))
    assert not shard.read_into(SECTOR + offset, [memory[:SECTOR], memory[SECTOR + address : 3 * SECTOR + address - length]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"block_rows": 2, "buffer_nbytes": 1}, 1901911354), ({}, 1584386432)],
    ids=str,
)
def test_the_order_of_epochs_is_that_of_earlier_versions(folder, options, expected):
    """Equal seeds give equal batches, whatever reads them."""
    loader = loader_of(folder, **options)
    visited = np.concatenate([batch["row"].numpy() for seed in (0, 7) for batch in loader.epoch(seed)])
    assert zlib.crc32(visited.astype("<i8").tobytes()) == expected


VIEWS = {"a slice": lambda t: t[10:20].view(5, 2).T, "a numpy array": lambda t: t.numpy()}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_keep_the_memory(view):
    pool = Pool()
    kept = view(pool.take(64).zero_())
    gc.collect()
    pool.take(64).fill_(1)
    assert ((kept == 0).all(), pool.n_made) == (True, 2)
    del kept
    kept = view(pool.take(64).zero_())
    pool.take(64)
    assert pool.n_made == 2
    del pool
    gc.collect()
    assert (kept == 0).all()


def test_a_forked_process_has_memory_of_its_own():
    """Else workers of a DataLoader would read over what this process, or another one, has just read."""
    memory = aligned_memory(8)
    if not (child := os.fork()):
        memory[0] = 1
        os._exit(memory[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert memory[0] == 0
