"""The order of an epoch: a permutation that the seed fixes, in long reads, shared by ranks, well mixed."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.loading.order import Order
from tests.store.conftest import shuffle_quality

ORDERS = st.builds(
    Order,
    rows=st.integers(0, 300).flatmap(lambda n: st.permutations(range(n)).map(lambda p: np.array(p[: n - n // 4], np.int64))),
    shard_rows=st.sampled_from([32, 64, 96]),
    block_rows=st.integers(1, 100),
    window_rows=st.integers(1, 400),
    shuffle=st.booleans(),
)


def _order(n: int = 1000, **changes: int | bool | None) -> Order:
    arguments = {"shard_rows": 64, "block_rows": 8, "window_rows": 128, **changes}
    return Order(np.arange(n), **arguments)  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(order=ORDERS, seed=st.integers(0, 2**32))
def test_a_permutation(order: Order, seed: int) -> None:
    for visited in (order.visited(seed), order.reading(seed)):
        assert np.array_equal(np.sort(visited), np.sort(order.rows))
    assert order.n_rows == len(order.rows)
    if not order.shuffle:
        assert np.array_equal(order.visited(seed), order.rows)


@settings(max_examples=100, deadline=None)
@given(order=ORDERS, seed=st.integers(0, 2**32), world_size=st.integers(1, 5))
def test_ranks(order: Order, seed: int, world_size: int) -> None:
    """Whole shards each, all of them together; equally long in every epoch, filled up with their own first rows."""
    n_shards = len(np.unique(order.rows // order.shard_rows))
    if not n_shards:
        return
    world_size = min(world_size, n_shards)
    ranks = [replace(order, rank=rank, world_size=world_size) for rank in range(world_size)]
    shares = [rank.reading(seed) for rank in ranks]
    assert len({len(share) for share in shares} | {rank.n_rows for rank in ranks} | {len(ranks[0].reading(seed + 1))}) == 1
    shards = [set((share // order.shard_rows).tolist()) for share in shares]
    assert sum(map(len, shards)) == len(set().union(*shards)) == n_shards
    assert np.array_equal(np.unique(np.concatenate(shares)), np.sort(order.rows))
    for rank, share in zip(ranks, shares, strict=True):
        n = len(np.unique(share))
        assert len(np.unique(share[:n])) == n  # repeats come at the end
        assert np.array_equal(share[n : 2 * n], share[: len(share) - n][:n])
        assert np.array_equal(np.sort(rank.visited(seed)), np.sort(share))


def test_shares_are_fair() -> None:
    """No rank has more than one shard beyond the others."""
    order = _order(64 * 10 + 5, world_size=3)
    assert order.n_rows == 64 * 4
    assert len(replace(order, rank=2).visited(7)) == 64 * 4


def test_shares_are_of_rows_not_of_shards() -> None:
    """The subset has 64 rows of every other shard, and one of the others."""
    rows = np.concatenate([np.arange(64) + 64 * shard if shard % 2 == 0 else [64 * shard] for shard in range(4)])
    assert replace(_order(world_size=2), rows=rows).n_rows == 65


def test_the_seed_fixes_the_order() -> None:
    order = _order()
    assert np.array_equal(order.visited(3), _order().visited(3))
    assert not np.array_equal(order.visited(3), order.visited(4))
    assert not np.array_equal(order.reading(3), order.reading(4))
    windows = [order.window(3, i, np.arange(128)) for i in range(3)]
    assert not np.array_equal(windows[0], windows[1])
    assert not np.array_equal(order.window(4, 0, np.arange(128)), windows[0])


def test_the_order_is_that_of_all_machines() -> None:
    """Results must not depend on a library's version without being noticed."""
    assert _order(20, shard_rows=10, block_rows=5, window_rows=8).visited(0).tolist() == GOLDEN


GOLDEN = [12, 14, 13, 6, 5, 10, 11, 7, 9, 1, 15, 4, 8, 2, 0, 3, 18, 17, 16, 19]


def test_the_order_of_the_given_rows_does_not_matter() -> None:
    """Shuffled, it is the seed's alone."""
    turned = replace(_order(), rows=np.arange(1000)[::-1])
    assert np.array_equal(turned.visited(5), _order().visited(5))


@pytest.mark.parametrize("block_rows", [1, 7, 8, 64, 1000])
def test_blocks_stay_together(block_rows: int) -> None:
    """Neighbours, ascending, never over the end of a shard; blocks are not in the order of the disk."""
    order = _order(block_rows=block_rows)
    reading = order.reading(0)
    starts = [0, *(np.flatnonzero((np.diff(reading) != 1) | (reading[1:] % 64 == 0)) + 1).tolist(), 1000]
    blocks = [reading[a:b] for a, b in pairwise(starts)]
    whole = min(block_rows, 64)
    assert all(len(b) % whole == 0 or b[-1] == 999 or (b[-1] + 1) % 64 == 0 for b in blocks)
    n_blocks = 15 * math.ceil(64 / whole) + math.ceil(40 / whole)
    assert n_blocks * 0.8 <= len(blocks) <= n_blocks
    assert not np.array_equal(reading, np.arange(1000))


def test_windows_mix_only_their_own_rows() -> None:
    order = _order(window_rows=100)
    reading, visited = order.reading(2), order.visited(2)
    for start in range(0, 1000, 100):
        assert np.array_equal(np.sort(visited[start : start + 100]), np.sort(reading[start : start + 100]))
        assert not np.array_equal(visited[start : start + 100], reading[start : start + 100])


@pytest.mark.parametrize(
    ("order", "displacement", "neighbours"),
    [
        (np.arange(900), 0, 1 / 300),
        # The mean of |n - 1 - 2 i| is n / 2 for even n: one and a half times that of a shuffle.
        (np.arange(900)[::-1], 1.5, 1 / 300),
        # By k of n rows: n - k rows move by k and k rows by n - k, in all 2 k (n - k).
        (np.roll(np.arange(900), 300), 2 * 300 * 600 / 900 / 300, (898 + 899) / 899 / 300),
    ],
    ids=["no shuffle", "reversal", "rotation"],
)
def test_quality_in_closed_form(order: np.ndarray, displacement: float, neighbours: float) -> None:
    assert shuffle_quality(order) == {"displacement": pytest.approx(displacement), "neighbours": pytest.approx(neighbours)}


def test_quality_of_a_full_shuffle() -> None:
    for seed in range(3):
        quality = shuffle_quality(np.random.default_rng(seed).permutation(50_000))
        assert quality == {"displacement": pytest.approx(1, abs=0.02), "neighbours": pytest.approx(1, abs=0.02)}


def test_streaming_mixes_as_well_as_a_full_shuffle() -> None:
    """50,000 images of ViT-B in float16: blocks of a MiB, windows of a batch of 1,024."""
    order = Order(np.arange(50_000), 1728, 3, 1024, True)
    for seed in range(3):
        assert shuffle_quality(order.visited(seed))["displacement"] == pytest.approx(1, abs=0.05)
    whole = replace(order, block_rows=32)
    assert shuffle_quality(whole.visited(0))["displacement"] == pytest.approx(1, abs=0.05)
