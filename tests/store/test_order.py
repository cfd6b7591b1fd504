"""Which rows are read: in an order that the seed fixes, in long reads, shared by ranks, well mixed; by ids."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import FeatureStore, Loader, StoreError, read_ids, rows_of_ids
from store.loading.order import Order, join, rows_named
from tests.features import write_features
from tests.store.conftest import displacement

ORDERS = st.builds(
    Order,
    rows=st.integers(0, 300).flatmap(lambda n: st.permutations(range(n)).map(lambda p: np.array(p[: n - n // 4], np.int64))),
    shard_rows=st.sampled_from([32, 64, 96]),
    block_rows=st.integers(1, 100),
    window_rows=st.integers(1, 400),
    shuffle=st.booleans(),
)
ORDER = Order(np.arange(1000), shard_rows=64, block_rows=8, window_rows=128)


@settings(max_examples=60, deadline=None)
@given(order=ORDERS, seed=st.integers(0, 2**32))
def test_a_permutation(order, seed):
    """Mixed inside windows; shuffled, it is the seed's alone."""
    visited, reading = order.visited(seed), order.reading(seed)
    for start in range(0, len(reading), order.window_rows):
        window = slice(start, start + order.window_rows)
        assert np.array_equal(np.sort(visited[window]), np.sort(reading[window]))
    assert np.array_equal(np.sort(visited), np.sort(order.rows))
    assert order.n_rows == len(order.rows)
    expected = replace(order, rows=order.rows[::-1]).visited(seed) if order.shuffle else order.rows
    assert np.array_equal(visited, expected)


@settings(max_examples=60, deadline=None)
@given(order=ORDERS, seed=st.integers(0, 2**32), world_size=st.integers(1, 5))
def test_ranks(order, seed, world_size):
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


def test_shares_are_fair():
    """No rank has more than one shard beyond the others; of a subset, rows count, and the largest shards are dealt first."""
    order = replace(ORDER, rows=np.arange(64 * 10 + 5), world_size=3)
    assert order.n_rows == len(replace(order, rank=2).visited(7)) == 64 * 4
    rows = np.concatenate([[0], np.arange(64, 127), np.arange(128, 192)])  # 1, 63 and 64
    assert replace(ORDER, rows=rows, world_size=2).n_rows == 64


def test_the_seed_fixes_the_order():
    """On all machines: results must not depend on a library's version without being noticed."""
    golden = [12, 14, 13, 6, 5, 10, 11, 7, 9, 1, 15, 4, 8, 2, 0, 3, 18, 17, 16, 19]
    assert Order(np.arange(20), 10, 5, 8).visited(0).tolist() == golden
    assert not np.array_equal(ORDER.reading(3), ORDER.reading(4))
    windows = [ORDER.window(*of, np.arange(128)).tolist() for of in ((3, 0), (3, 1), (4, 0))]
    assert windows[0] not in (windows[1], windows[2], list(range(128)))


@pytest.mark.parametrize("block_rows", [1, 7, 8, 64, 1000])
def test_blocks_stay_together(block_rows):
    """Neighbours, ascending, never over the end of a shard; blocks are not in the order of the disk."""
    reading = replace(ORDER, block_rows=block_rows).reading(0)
    starts = [0, *(np.flatnonzero((np.diff(reading) != 1) | (reading[1:] % 64 == 0)) + 1).tolist(), 1000]
    blocks = [reading[a:b] for a, b in pairwise(starts)]
    whole = min(block_rows, 64)
    assert all(len(b) % whole == 0 or b[-1] == 999 or (b[-1] + 1) % 64 == 0 for b in blocks)
    n_blocks = 15 * math.ceil(64 / whole) + math.ceil(40 / whole)
    assert n_blocks * 0.8 <= len(blocks) <= n_blocks
    assert not np.array_equal(reading, np.arange(1000))


def test_streaming_mixes_as_well_as_a_full_shuffle():
    """50,000 images of ViT-B in float16: blocks of 32 rows, windows of a batch of 1,024."""
    assert displacement(np.arange(900)[::-1]) == 1.5, "the mean of |n - 1 - 2 i| is n / 2 for even n"
    assert displacement(Order(np.arange(50_000), 1728, 32, 1024).visited(1)) == pytest.approx(1, rel=0.05)


# -- the row of an image in another set, or of an id -------------------------------------------------------------------


def test_by_id(tmp_path):
    """Ids are row numbers: the second set has 49 of the first one's images. Those that it lacks must be left out."""
    one, other = (write_features(tmp_path / str(n), n, seed=n, invalid=[3] * (n == 50)) for n in (70, 50))
    arrays, rows = {"map": other.array("attention/cls/block1/view0")}, join(one, other)
    assert rows.tolist() == [0, 1, 2, -1, *range(4, 50), *[-1] * 20]
    with pytest.raises(StoreError, match=r"attention/cls/block1/view0 lacks 21 of the images, first that of row 3"):
        Loader(arrays, one.labels, joined={"map": rows})
    assert len(list(Loader(arrays, one.labels, np.flatnonzero(rows >= 0), joined={"map": rows}).epoch())) == 1


def test_other_images(tmp_path, written):
    one, other = write_features(tmp_path / "one", n_classes=3, seed=1), write_features(tmp_path / "other", n_classes=4, seed=2)
    with pytest.raises(StoreError, match=r"no image in common: the first has ids like '000000', the second like 'é0'"):
        join(one, FeatureStore.open(written))
    with pytest.raises(StoreError, match=r"image '000003' has label 0 in .*one but 3 in .*other; are these the same images"):
        join(one, other)


TRAIN = ["n01440764/n01440764_10026", "n01440764/n01440764_9", "n01443537/n01443537_2", "a.b/n01443537_2", "plain"]


@pytest.mark.parametrize(
    ("known", "ids", "rows"),
    [
        (TRAIN, ["plain", "n01440764/n01440764_9"], [4, 1]),
        (TRAIN, ["n01440764_9.JPEG", "n01440764_10026"], [1, 0]),  # as the published lists of 1 % call them
        (TRAIN, ["n01443537/n01443537_2.jpg"], [2]),
        (TRAIN, ["a.b/n01443537_2", "x/plain.png"], [3, 4]),
        (TRAIN, [], []),
        (["image.1", "image.2", "image"], ["image.2", "image", "image.1"], [1, 2, 0]),  # dots begin no ending
    ],
)
def test_ids_and_file_names(known, ids, rows):
    selected = rows_named(known, ids, "here")
    assert (selected.dtype, selected.tolist()) == (np.int64, rows)


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        (["plain", "n0_1.JPEG", "n0_2.JPEG"], r"2 of 3 ids are not in here, first 'n0_1\.JPEG'; .*'n01440764/n01440764_10026'"),
        (["n01443537_2.JPEG"], r"'n01443537_2\.JPEG' could be several images of here: n01443537/n01443537_2, a\.b/n014"),
        (["n01440764/n01440764_9", "n01440764_9.JPEG"], r"'n01440764_9\.JPEG' appears twice .*'n01440764/n01440764_9'"),
    ],
)
def test_ids_that_name_no_image_of_their_own(ids, named):
    with pytest.raises(StoreError, match=named):
        rows_named(TRAIN, ids, "here")


def test_ids_of_a_set(written):
    assert rows_of_ids(FeatureStore.open(written), ["é7.JPEG", "é0"]).tolist() == [7, 0]


def test_list_of_ids(tmp_path):
    file = tmp_path / "1percent.txt"
    file.write_text("n01440764_10182.JPEG\r\n\nn01440764_10293.JPEG \n")
    assert read_ids(file) == ["n01440764_10182.JPEG", "n01440764_10293.JPEG"]
    for content, named in ((b"\xff\xfe", "cannot be read"), (b"\n", "is empty")):
        file.write_bytes(content)
        with pytest.raises(StoreError, match=rf"the list of ids '.*1percent\.txt' {named}"):
            read_ids(file)
    with pytest.raises(StoreError, match="cannot be read"):
        read_ids(tmp_path / "none.txt")
