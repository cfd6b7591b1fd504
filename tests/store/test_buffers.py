"""Memory is used again, and never under somebody's hands."""

import gc
import os

import torch

from store.loading.reading import Pool
from store.places.place import ALIGNMENT, aligned_memory


def test_what_is_dropped_is_used_again() -> None:
    pool = Pool()
    for _ in range(5):
        first = pool.take(1000).data_ptr()
        assert first % ALIGNMENT == 0
    assert pool.n_made == 1


def test_what_is_kept_is_not_overwritten() -> None:
    pool = Pool()
    kept = [pool.take(64).fill_(i) for i in range(4)]
    assert pool.n_made == 4
    assert [int(t.sum()) for t in kept] == [0, 64, 128, 192]


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


def test_sizes_do_not_mix() -> None:
    pool = Pool()
    assert [len(pool.take(n)) for n in (10, 20, 10, 0, 20)] == [10, 20, 10, 0, 20]
    assert pool.n_made == 3


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
