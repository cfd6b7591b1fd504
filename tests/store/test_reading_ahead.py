"""Many reads are in flight, straight to their places where the disk allows it; memory is used again, never in use."""

import errno
import gc
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from store import ArrayLayout, FeatureStore, Loader
from store.format.array import ArrayReader
from store.loading.reading import CACHED_READS, DISK_READS, Pool
from store.places import local
from store.places.place import SECTOR, aligned_memory, is_aligned
from tests.store.conftest import same, write

N, NAME = 160, "patch/block5/view0"
ROW_NBYTES = 66 * SECTOR  # no whole pages, and more than 64 KiB with its neighbour


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, ROW_NBYTES // 2)).astype("float16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, rows: np.ndarray) -> Path:
    folder = tmp_path_factory.mktemp("ahead") / "s"
    write(folder, [ArrayLayout(NAME, rows.shape, "float16", ("image", "channel"), 64, codec="float16")], {NAME: rows})
    return folder


def _loader(folder: Path, **options: Any) -> Loader:
    array = FeatureStore.open(folder).array(NAME)
    options = {"placement": "stream", "dtype": None, "batch_size": 32, "block_rows": 2, **options}
    return Loader({"x": array}, np.arange(N), **options)


def _assert_right(loader: Loader, rows: np.ndarray, expected: int = N) -> None:
    n = 0
    for batch in loader.epoch():
        assert same(batch["x"].numpy(), rows[batch["row"].numpy()])
        n += len(batch["row"])
    assert n == expected


Preadv = Callable[[int, Sequence[memoryview], int], int]


def _replace_preadv(monkeypatch: pytest.MonkeyPatch, make: Callable[[Preadv], Preadv]) -> None:
    monkeypatch.setattr(os, "preadv", make(os.preadv))


@pytest.mark.parametrize(("direct", "n_reads"), [(True, DISK_READS), (False, CACHED_READS)])
def test_reads_in_flight(folder: Path, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch, direct: bool, n_reads: int) -> None:
    """As many as promised: each waits, the first time, for the others."""
    together = threading.Barrier(n_reads)

    def make(real: Preadv) -> Preadv:
        def preadv(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
            if threading.current_thread().name.startswith("beyondcls-loader") and not passed.is_set():
                together.wait(timeout=20)
                passed.set()
            return real(descriptor, views, offset)

        return preadv

    passed, apart = threading.Event(), np.arange(0, N, 2)
    loader = Loader(
        {"x": FeatureStore.open(folder, verify="never").array(NAME)},
        np.arange(N),
        apart,
        placement="stream",
        dtype=None,
        batch_size=20,
        shuffle=False,
        direct=direct,
    )
    _replace_preadv(monkeypatch, make)
    _assert_right(loader, rows, len(apart))
    assert passed.is_set()


def test_rows_of_whole_sectors_are_read_to_their_places(
    folder: Path, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the page cache too: no row goes through other memory."""
    monkeypatch.setattr(ArrayReader, "fetch", lambda *_: pytest.fail("a copy"))
    for placement in ("stream", "memory"):
        _assert_right(_loader(folder, direct=True, placement=placement), rows)


def test_a_disk_with_larger_sectors(folder: Path, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses what is not whole pages; each file is asked once."""
    refused = []

    def make(real: Preadv) -> Preadv:
        def preadv(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
            if offset % 4096 or any(len(view) % 4096 or not is_aligned(view) for view in views):
                refused.append(descriptor)
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(descriptor, views, offset)

        return preadv

    _replace_preadv(monkeypatch, make)
    _assert_right(_loader(folder, direct=True, threads=1), rows)
    assert len(refused) == len(set(refused)) == 3, "of each shard"


@pytest.mark.parametrize("skip", [(1, 0, 0), (0, 1, 0), (0, 0, 1)], ids=["offset", "address", "length"])
def test_what_is_not_of_whole_sectors_is_not_asked_for(
    tmp_path: Path, skip: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems do not refuse it, but read it through the page cache."""
    (tmp_path / "file").write_bytes(bytes(8 * SECTOR))
    shard = local.LocalShard(tmp_path / "file", direct=True)
    if not shard.direct:
        pytest.skip("this file system has a page cache only")
    offset, address, length = skip
    memory = aligned_memory(4 * SECTOR)
    assert shard.read_into(SECTOR, [memory[SECTOR : 3 * SECTOR]])
    monkeypatch.setattr(os, "preadv", lambda *_: pytest.fail("asked for"))
    assert not shard.read_into(SECTOR + offset, [memory[:SECTOR], memory[SECTOR + address : 3 * SECTOR + address - length]])


@pytest.mark.parametrize(
    ("options", "expected"), [({}, 2617547042), ({"buffer_nbytes": 1}, 1901911354), ({"block_rows": None}, 1584386432)], ids=str
)
def test_the_order_of_epochs_is_that_of_earlier_versions(folder: Path, options: dict[str, Any], expected: int) -> None:
    """Equal seeds give equal batches, whatever reads them."""
    loader = _loader(folder, **options)
    visited = np.concatenate([batch["row"].numpy() for seed in (0, 7) for batch in loader.epoch(seed)])
    assert zlib.crc32(visited.astype("<i8").tobytes()) == expected


# -- memory ------------------------------------------------------------------------------------------------------------


def test_views_keep_the_memory() -> None:
    """Of another dtype, a slice, a reshape, a numpy array."""
    for view in (
        lambda t: t.view(torch.float32),
        lambda t: t[10:20],
        lambda t: t.view(8, 8).T,
        lambda t: t.numpy(),
        lambda t: t[:8].view(torch.int64).expand(3, 1),
    ):
        pool = Pool()
        kept = view(pool.take(64).zero_())
        gc.collect()
        pool.take(64).fill_(1)
        assert (kept == 0).all()
        assert pool.n_made == 2
        del kept
        pool.take(64)
        pool.take(64)
        assert pool.n_made == 2


def test_memory_outlives_its_pool() -> None:
    pool = Pool()
    kept = pool.take(64).fill_(7)
    del pool
    gc.collect()
    assert (kept == 7).all()


def test_a_forked_process_has_memory_of_its_own() -> None:
    """Else workers of a DataLoader would read over what this process, or another one, has just read."""
    memory = aligned_memory(8)
    if not (child := os.fork()):
        memory[0] = 1
        os._exit(memory[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert memory[0] == 0
