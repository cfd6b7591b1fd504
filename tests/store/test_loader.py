"""Every row once an epoch, in an order that the seed fixes, wherever the arrays are."""

import gc
import pickle
import resource
import threading

import numpy as np
import pytest
import torch
import xxhash

from store import ArrayLayout, FeatureStore, Loader, StoreError
from store.loading.loader import Stats
from store.loading.reading import DISK_READS
from tests.forked import CONTEXT, status
from tests.store.conftest import N, displacement, flip, same, write
from tests.store.tiny import Tiny

BOTH = pytest.mark.parametrize("placement", ["memory", "stream"])
PATCH, CLS = "patch/block5/view0", "cls/block5/view0"


def loader_of(path, placement, rows=None, **options):
    store = FeatureStore.open(path)
    arrays = {"patch": store.tokens("patch"), "number": store.array("images/label")}
    return Loader(arrays, np.arange(N), rows, placement=placement, **{"batch_size": 32, **options})


def rows_of(loader, seed=0):
    """The order; labels are row numbers here."""
    return [int(row) for batch in loader.epoch(seed) for row in batch["label"]]


@BOTH
@pytest.mark.parametrize("batch_size", [32, N, N + 1])
def test_every_row_once(written, placement, batch_size):
    loader = loader_of(written, placement, batch_size=batch_size)
    sizes = [len(batch["label"]) for batch in loader.epoch(3)]
    assert sizes == [batch_size] * (len(loader) - 1) + [(N - 1) % batch_size + 1]
    assert sorted(rows_of(loader, 3)) == list(range(N))


@BOTH
def test_the_order_is_of_the_seed_or_the_rows(written, placement):
    loader = loader_of(written, placement)
    assert rows_of(loader, 1) == rows_of(loader, 1) == rows_of(loader_of(written, placement), 1)
    assert rows_of(loader, 1) != rows_of(loader, 2)
    assert displacement(loader_of(written, "memory").order.visited(0)) > 0.8, "as mixed as can be"
    for rows in ([9, 140, 3, 77, 4], []):
        assert rows_of(loader_of(written, placement, rows, shuffle=False, batch_size=2)) == rows


def readers():
    gc.collect()
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("beyondcls-loader")]


def test_errors_of_the_reading_thread_reach_the_consumer(small):
    flip(small / PATCH / "c/1/0/0", 5)
    batches = loader_of(small, "stream", shuffle=False).epoch()
    assert next(batches)["label"].tolist() == list(range(32))
    next(batches)
    with pytest.raises(StoreError, match=r"patch/block5/view0/c/1/0/0 is damaged"):
        next(batches)
    assert not readers()


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "forgotten"])
def test_an_epoch_that_is_left_early_leaves_no_thread(written, is_closed):
    batches = loader_of(written, "stream", batch_size=1, buffer_nbytes=1).epoch()
    assert not readers()
    next(batches)
    assert readers()
    if is_closed:
        batches.close()
    del batches
    assert not readers()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arrays": {}}, "a loader needs at least one array"),
        ({"joined": {"patch": np.arange(3)}}, f"patch/block5/view0 has 3 rows, but there are {N} labels"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rows": [N]}, f"rows {N} to {N} are"),
        ({"rows": np.arange(N) > 3}, r"np\.flatnonzero"),
        *(({"rank": rank, "world_size": 2}, f"rank is {rank}, expected 0 to 1") for rank in (-1, 2)),
        ({"world_size": 4}, "4 ranks, but only 3 shards to share"),
        ({"arrays": {"patch": [PATCH] * 3, "cls": [CLS] * 2}}, r"different numbers of views \(patch has 3, cls has 2\)"),
        ({"arrays": {"patch": [PATCH, CLS]}}, "cls/block5/view0 has another shape than patch/block5/view0"),
    ],
    ids=str,
)
def test_what_does_not_fit(written, options, message):
    options, store = {"arrays": {"patch": [PATCH]}, "labels": np.arange(N), **options}, FeatureStore.open(written)
    options["arrays"] = {name: [store.array(of) for of in views] for name, views in options["arrays"].items()}
    with pytest.raises(StoreError, match=message):
        Loader(**options)


# -- several arrays, several sets, several views -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A set of more images, with three views of blocks 3 and 5."""
    return FeatureStore.open(Tiny(200, (3, 5), views=3).make(tmp_path_factory.mktemp("other") / "one"))


def views(store, block):
    return [store.tokens("patch", block, view) for view in range(3)]


@pytest.mark.parametrize("placement", ["memory", "stream", "auto"])
def test_sets_in_step(written, other, contents, placement, monkeypatch):
    """Of the other set, the row that belongs to the same image; "auto" keeps what is small and streams the tokens."""
    monkeypatch.setattr("store.loading.placement.free_memory", lambda device: 60 * N)
    store, joined, rows = FeatureStore.open(written), np.random.default_rng(0).permutation(200)[:N], np.arange(3, N)
    arrays = {"a": store.tokens("patch"), "b": other.tokens("patch"), "valid of b": other.array("images/valid")}
    options = {"joined": {"b": joined, "valid of b": joined}, "batch_size": 20, "dtype": None}
    loader = Loader(arrays, np.arange(2 * N).reshape(N, 2), rows, placement=placement, **options)
    expected = {"memory", "stream"} if placement == "auto" else {placement}
    assert set(loader.places.values()) == expected
    assert loader.placement == max(expected), "of the largest"
    for batch in loader.epoch(2):
        rows = batch["row"].numpy()
        assert same(batch["a"].numpy(), contents[PATCH][rows])
        assert same(batch["b"].numpy(), other.tokens("patch").all()[joined[rows]])
        assert same(batch["valid of b"].numpy(), other.array("images/valid").all()[joined[rows]])
        assert batch["label"].tolist() == [[2 * row, 2 * row + 1] for row in rows]


@BOTH
@pytest.mark.parametrize("rows", [np.arange(200), np.array([5, 190, 64, 63])], ids=["all", "some"])
def test_each_image_shows_the_view_of_the_epoch(other, placement, rows):
    """The same one in all arrays that have views, also of another set."""
    valid, backwards = other.array("images/valid"), np.arange(200)[::-1]
    arrays = {"patch": views(other, 3), "deep": views(other, 5), "valid": valid}
    options = {"batch_size": 32, "placement": placement, "dtype": None, "joined": {"deep": backwards}}
    loader = Loader(arrays, np.arange(200), rows, **options)
    stacked = {block: np.stack([array.all() for array in views(other, block)]) for block in (3, 5)}
    for seed in (0, 1):
        view, visited = loader.views_of(seed).numpy(), []
        for batch in loader.epoch(seed):
            visited += batch["row"].tolist()
            row = batch["row"].numpy()
            assert same(batch["patch"].numpy(), stacked[3][view[row], row])
            assert same(batch["deep"].numpy(), stacked[5][view[row], backwards[row]])
            assert same(batch["valid"].numpy(), valid.all()[row])
        assert sorted(visited) == sorted(rows)


def test_views_are_random_and_fixed_by_the_seed(other):
    one, again, another = (Loader({"x": views(other, 3)}, np.arange(200)).views_of(seed).numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert 0.5 < (one != another).mean() < 0.85  # 2/3 for three views
    assert np.bincount(one, minlength=3).min() > 200 / 3 * 0.7
    single, several = (Loader({"x": arrays}, np.arange(200)) for arrays in (views(other, 3)[:1], views(other, 3)))
    assert single.views_of(0) is None
    size, size_of_all = (float(loader.reason.split()[1]) for loader in (single, several))
    assert size_of_all == pytest.approx(3 * size, rel=0.05)


# -- position in an epoch, and processes -------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("buffer_nbytes", [1, 10_000])
def test_an_epoch_is_gone_on_with_at_every_batch(written, placement, buffer_nbytes):
    loader, another = (loader_of(written, placement, batch_size=16, buffer_nbytes=buffer_nbytes) for _ in range(2))
    whole = [batch["row"].tolist() for batch in loader.epoch(5)]
    for n in (0, 1, 4, len(whole) - 1, len(whole)):
        rest = list(another.epoch(5, n))
        assert [batch["row"].tolist() for batch in rest] == whole[n:]
        assert all(torch.equal(batch["number"], batch["row"] % 3) for batch in rest)


@BOTH
def test_ranks_share_the_rows(written, placement):
    ranks = [loader_of(written, placement, rank=r, world_size=3, batch_size=10) for r in range(3)]
    for seed in (0, 1):
        shares = [rows_of(rank, seed) for rank in ranks]
        assert [(len(share), len(rank)) for share, rank in zip(shares, ranks, strict=True)] == [(64, 7)] * 3
        assert sorted(shard for share in shares for shard in {row // 64 for row in share}) == [0, 1, 2]
        assert {row for share in shares for row in share} == set(range(N))


def contents_of(loader):
    return [(b["row"].tolist(), xxhash.xxh3_64_hexdigest(b["patch"].numpy().tobytes())) for b in loader.epoch(3)]


@BOTH
def test_sent_to_another_process(written, placement):
    loader = loader_of(written, placement, batch_size=40)
    assert contents_of(pickle.loads(pickle.dumps(loader))) == contents_of(loader)


# -- reading -----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_batches_that_are_kept_are_not_overwritten(written, contents, placement, dtype):
    loader = loader_of(written, placement, batch_size=10, buffer_nbytes=1, dtype=dtype)
    for batch in [batch for batches in (list(loader.epoch()), list(loader.epoch(1))) for batch in batches]:
        expected = torch.from_numpy(contents[PATCH][batch["row"].numpy()])
        torch.testing.assert_close(batch["patch"], expected.to(dtype), rtol=0, atol=0, equal_nan=True)
        assert batch["number"].dtype == torch.int64
        assert torch.equal(batch["number"], batch["row"] % 3)


@BOTH
def test_memory_is_used_again(written, placement):
    loader = loader_of(written, placement, np.arange(140), batch_size=10, buffer_nbytes=1)
    rows_of(loader)
    made = loader._pool.n_made
    for seed in range(6):
        rows_of(loader, seed)
    assert loader._pool.n_made <= made + 2 <= 14


def test_the_number_of_threads_does_not_matter(written):
    """Nor do the page cache and the size of reads: the seed alone fixes what comes when."""
    options = ({"threads": 1}, {"threads": 7}, {"direct": True}, {"direct": False})
    epochs = [contents_of(loader_of(written, "stream", batch_size=10, buffer_nbytes=5000, **some)) for some in options]
    assert all(epoch == epochs[0] for epoch in epochs)


def test_fewer_threads_where_no_disk_is_waited_for(written, monkeypatch):
    monkeypatch.setattr("store.loading.loader.CACHED_READS", 3)
    threads = lambda direct: loader_of(written, "stream", direct=direct).threads  # noqa: E731
    assert (threads(True), threads(False)) == (DISK_READS, 3)
    for is_cached, expected in ((True, 3), (False, DISK_READS)):
        monkeypatch.setattr("store.places.local._in_page_cache", lambda _, answer=is_cached: answer)
        assert threads(None) == expected
    assert loader_of(written, "stream", threads=5).threads == 5


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("row_nbytes", [6000, 16384, 3 << 20])
def test_rows_of_any_size(tmp_path, row_nbytes, direct):
    """Longer than a digest's piece, than a read, and such as are read straight to their places."""
    n = 40 if row_nbytes < 1 << 20 else 3
    arrays = [ArrayLayout(PATCH, (n, row_nbytes // 2), "float16", ("image", "channel"), 32, codec="float16")]
    values = np.random.default_rng(0).normal(size=arrays[0].shape).astype("float16")
    write(tmp_path / "s", arrays, {PATCH: values})
    array = FeatureStore.open(tmp_path / "s").array(PATCH)
    for options in ({}, {"shuffle": False}, {"rows": np.arange(0, n, 2)}, {"block_rows": 1}):
        loader = Loader({"x": array}, np.arange(n), placement="stream", direct=direct, dtype=None, batch_size=7, **options)
        assert all(same(batch["x"].numpy(), values[batch["row"].numpy()]) for batch in loader.epoch())
    assert same(array.all(), values)


def test_what_an_epoch_did(written):
    loader = loader_of(written, "stream")
    for seed in range(2):
        rows_of(loader, seed)
    assert (loader.stats.n_batches, loader.stats.nbytes) == (2 * len(loader), 2 * loader.nbytes)
    assert 0 <= loader.stats.wait_s <= loader.stats.total_s
    assert str(Stats(1, 2 * 10**9, 1.0, 4.0, 2.0)) == "0.50 GB/s, 25% of the time waiting for data, 50% for the GPU"
    assert str(Stats()) == "0.00 GB/s, 0% of the time waiting for data"


def measure(path, answer):
    """Send by how many kB an epoch makes this process larger, and how many the array has."""
    array = FeatureStore.open(path).tokens("patch")
    options = {"placement": "stream", "batch_size": 16, "buffer_nbytes": 8 << 20, "threads": 2, "dtype": None}
    sizes = []
    for rows in (np.arange(32), np.arange(array.shape[0])):  # first some, for what is loaded once
        for batch in Loader({"x": array}, np.arange(array.shape[0]), rows, **options).epoch():
            del batch
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    answer.send((sizes[1] - sizes[0], array.nbytes // 1024))


def test_memory_is_bounded(tmp_path):
    """An epoch over 200 MB takes a small part of that."""
    arrays = [ArrayLayout(PATCH, (1600, 62_500), "float16", ("image", "channel"), 320, codec="float16")]
    rows = np.random.default_rng(0).integers(0, 100, arrays[0].shape, np.int16).astype("float16")
    write(tmp_path / "s", arrays, {PATCH: rows})
    receiver, sender = CONTEXT.Pipe()
    assert status(measure, tmp_path / "s", sender) == 0
    grown, nbytes = receiver.recv()
    assert nbytes > 190 * 1000
    assert grown < nbytes / 4


def test_what_is_kept_on_a_device_needs_no_copy(written, monkeypatch):
    """The way of a GPU that holds all features, gone on the CPU: the same batches, and nothing of the host is asked."""
    expected = contents_of(loader_of(written, "memory"))
    monkeypatch.setattr("store.loading.loader.choose_placement", lambda arrays, *_: (dict.fromkeys(arrays, "device"), "test"))
    loader = loader_of(written, "auto")
    assert loader.placement == "device"
    assert contents_of(loader) == expected
