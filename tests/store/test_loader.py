"""Every row once an epoch, in an order that the seed fixes, wherever the arrays are."""

import gc
import resource
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from store import ArrayLayout, FeatureStore, Loader, StoreError
from store.format.array import Verify
from store.loading.loader import Stats
from store.loading.placement import Placement
from store.loading.reading import DISK_READS
from tests.forked import CONTEXT, start, status
from tests.store.conftest import INVALID, N, flip, same, shuffle_quality, write
from tests.store.tiny import Tiny

BOTH = pytest.mark.parametrize("placement", ["memory", "stream"])


def _loader(path: Path, placement: Placement, rows: np.ndarray | None = None, **arguments: Any) -> Loader:
    store = FeatureStore.open(path)
    arrays = {"patch": store.tokens("patch"), "number": store.array("images/label")}
    return Loader(arrays, np.arange(N), rows, placement=placement, **{"batch_size": 32, **arguments})


def _rows(loader: Loader, seed: int = 0) -> list[int]:
    """The order; labels are row numbers here."""
    return [int(row) for batch in loader.epoch(seed) for row in batch["label"]]


@BOTH
@pytest.mark.parametrize("batch_size", [1, 32, 64, N, N + 1])
def test_every_row_once(written: Path, placement: Placement, batch_size: int) -> None:
    loader = _loader(written, placement, batch_size=batch_size)
    batches = list(loader.epoch(3))
    assert len(batches) == len(loader)
    assert [len(b["label"]) for b in batches[:-1]] == [batch_size] * (len(loader) - 1)
    assert len(batches[-1]["label"]) == (N - 1) % batch_size + 1
    assert sorted(_rows(loader, 3)) == list(range(N))


@BOTH
def test_seed_fixes_the_order(written: Path, placement: Placement) -> None:
    loader = _loader(written, placement)
    assert _rows(loader, 1) == _rows(loader, 1) == _rows(_loader(written, placement), 1)
    assert _rows(loader, 1) != _rows(loader, 2)
    assert _rows(loader, 1) != list(range(N))


@BOTH
def test_order_of_the_rows_without_shuffling(written: Path, placement: Placement) -> None:
    rows = np.array([9, 140, 3, 77, 4])
    assert _rows(_loader(written, placement, rows, shuffle=False, batch_size=2)) == rows.tolist()


@BOTH
def test_subset(written: Path, placement: Placement) -> None:
    rows = np.flatnonzero(FeatureStore.open(written).valid)
    assert sorted(_rows(_loader(written, placement, rows))) == [row for row in range(N) if row not in INVALID]


def test_stream_reads_neighbours_together(written: Path) -> None:
    """With windows of one block, its batches have neighbouring rows, shuffled among themselves."""
    for batch in _loader(written, "stream", block_rows=16, batch_size=16, buffer_nbytes=1).epoch():
        rows = batch["label"].tolist()
        if len(rows) == 16 and rows != sorted(rows) and max(rows) - min(rows) == 15:
            return
    pytest.fail("no batch holds a whole block")


def _readers() -> list[str]:
    """Threads that read."""
    gc.collect()
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("beyondcls-loader")]


def _damage(path: Path) -> None:
    flip(path / "patch/block5/view0/c/1/0/0", 5)


def test_errors_of_the_reading_thread_reach_the_consumer(small: Path) -> None:
    _damage(small)
    batches = _loader(small, "stream", shuffle=False).epoch()
    assert next(batches)["label"].tolist() == list(range(32))
    next(batches)
    with pytest.raises(StoreError, match=r"patch/block5/view0/c/1/0/0 is damaged"):
        next(batches)
    assert not _readers()


@pytest.mark.parametrize("n", [0, 1, 3])
def test_an_epoch_that_is_left_early_leaves_no_thread(written: Path, n: int) -> None:
    batches = _loader(written, "stream", batch_size=1, buffer_nbytes=1).epoch()
    for _ in range(n):
        next(batches)
    assert bool(_readers()) == (n > 0)
    batches.close()  # type: ignore[attr-defined]
    assert not _readers()


def test_a_forgotten_epoch_leaves_no_thread(written: Path) -> None:
    for _ in _loader(written, "stream", batch_size=1).epoch():
        break
    gc.collect()
    assert not _readers()


@BOTH
def test_a_mask_is_no_list_of_rows(written: Path, placement: Placement) -> None:
    with pytest.raises(StoreError, match=r"np\.flatnonzero"):
        list(_loader(written, placement, FeatureStore.open(written).valid, shuffle=False).epoch())


def test_labels_or_joined_rows_of_another_set(written: Path) -> None:
    tokens = {"patch": FeatureStore.open(written).tokens("patch")}
    with pytest.raises(StoreError, match=f"patch/block5/view0 has {N} rows, but there are {N - 1} labels"):
        Loader(tokens, np.arange(N - 1))
    with pytest.raises(StoreError, match=f"patch/block5/view0 has 3 rows, but there are {N} labels"):
        Loader(tokens, np.arange(N), joined={"patch": np.arange(3)})
    with pytest.raises(StoreError, match="a loader needs at least one array"):
        Loader({}, np.arange(3))


@BOTH
def test_no_rows_give_no_batch(written: Path, placement: Placement) -> None:
    assert _rows(_loader(written, placement, np.array([], dtype=np.int64), shuffle=False)) == []


# -- several arrays, several sets --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """A set of more images, with blocks 3 and 5."""
    return FeatureStore.open(Tiny(200, (3, 5)).make(tmp_path_factory.mktemp("other") / "one"))


@pytest.mark.parametrize("placement", ["memory", "stream", "auto"])
def test_sets_in_step(
    written: Path, other: FeatureStore, contents: dict[str, np.ndarray], placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the other set, the row that belongs to the same image; "auto" keeps what is small and streams the tokens."""
    monkeypatch.setattr("store.loading.placement.free_memory", lambda device: 60 * N)
    store = FeatureStore.open(written)
    joined = np.random.default_rng(0).permutation(200)[:N]
    arrays = {"a": store.tokens("patch"), "b": other.tokens("patch"), "valid of b": other.array("images/valid")}
    loader = Loader(
        arrays, np.arange(N), placement=placement, joined={"b": joined, "valid of b": joined}, batch_size=20, dtype=None
    )
    expected = {"memory": {"memory"}, "stream": {"stream"}, "auto": {"memory", "stream"}}
    assert set(loader.places.values()) == expected[placement]
    assert loader.placement == max(expected[placement]), "of the largest"
    expected_b = Tiny(200, (3, 5)).values("patch/block5/view0")
    for batch in loader.epoch(2):
        rows = batch["row"].numpy()
        assert same(batch["a"].numpy(), contents["patch/block5/view0"][rows])
        assert same(batch["b"].numpy(), expected_b[joined[rows]])
        assert same(batch["valid of b"].numpy(), Tiny(200, (3, 5)).values("images/valid")[joined[rows]])


def test_rows_that_are_not_of_all_images(written: Path, other: FeatureStore) -> None:
    store, rows = FeatureStore.open(written), np.array([140, 3, 77])
    joined = np.arange(N) + 5
    arrays = {"a": store.array("images/label"), "b": other.array("images/label")}
    for placement in ("memory", "stream"):
        loader = Loader(arrays, np.arange(N), rows, joined={"b": joined}, placement=placement)
        (batch,) = loader.epoch()
        assert sorted(batch["row"].tolist()) == [3, 77, 140]
        assert torch.equal(batch["b"], batch["row"] + 5)
        assert torch.equal(batch["a"], batch["row"] % 3)


def test_labels_of_several_columns(written: Path) -> None:
    labels = np.arange(2 * N).reshape(N, 2)
    for batch in Loader({"x": FeatureStore.open(written).tokens("cls")}, labels, batch_size=7).epoch():
        assert torch.equal(batch["label"], torch.stack((2 * batch["row"], 2 * batch["row"] + 1), 1))


@BOTH
def test_values_as_they_are_stored(written: Path, contents: dict[str, np.ndarray], placement: Placement) -> None:
    store = FeatureStore.open(written)
    names = ["patch/block5/view0", "images/id", "images/size", "statistics/cls_self/view0"]
    arrays = {name: store.array(name) for name in names}
    for batch in Loader(arrays, np.arange(N), placement=placement, dtype=None, batch_size=40).epoch():
        for name in names:
            assert same(batch[name].numpy(), contents[name][batch["row"].numpy()])
    for batch in Loader(arrays, np.arange(N), placement=placement, dtype=torch.float64, batch_size=40).epoch():
        assert batch["patch/block5/view0"].dtype == torch.float64
        assert batch["images/id"].dtype == torch.uint8


# -- position in an epoch ----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("buffer_nbytes", [1, 10_000, 1 << 20])
def test_an_epoch_is_gone_on_with_at_every_batch(written: Path, placement: Placement, buffer_nbytes: int) -> None:
    loader = _loader(written, placement, batch_size=16, buffer_nbytes=buffer_nbytes)
    whole = [batch["row"].tolist() for batch in loader.epoch(5)]
    another = _loader(written, placement, batch_size=16, buffer_nbytes=buffer_nbytes)
    for n in range(len(whole) + 1):
        rest = []
        for batch in another.epoch(5, n):
            assert torch.equal(batch["number"], batch["row"] % 3)
            rest.append(batch["row"].tolist())
        assert rest == whole[n:]


# -- several processes -------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_the_rows(written: Path, placement: Placement, shuffle: bool) -> None:
    ranks = [_loader(written, placement, rank=r, world_size=3, batch_size=10, shuffle=shuffle) for r in range(3)]
    for seed in (0, 1):
        shares = [_rows(rank, seed) for rank in ranks]
        assert {len(share) for share in shares} == {64}
        assert {len(rank) for rank in ranks} == {7}
        shards = [{row // 64 for row in share} for share in shares]
        assert sorted(s for shard in shards for s in shard) == [0, 1, 2]
        assert sorted({row for share in shares for row in share}) == list(range(N))


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        *((rank, n, f"rank is {rank}, expected 0 to {n - 1}") for rank, n in ((-1, 2), (2, 2), (0, 0))),
        (0, 4, "4 ranks, but only 3 shards to share"),
    ],
)
def test_ranks_that_there_are_not(written: Path, rank: int, world_size: int, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        _loader(written, "memory", rank=rank, world_size=world_size)


def _contents(loader: Loader) -> list[tuple[list[int], str]]:
    return [(b["row"].tolist(), xxhash.xxh3_64_hexdigest(b["patch"].numpy().tobytes())) for b in loader.epoch(3)]


def _answer(loaders: list[Loader], answer: Connection) -> None:
    answer.send([_contents(loader) for loader in loaders])


def test_sent_to_another_process(written: Path) -> None:
    """It opens its own files, and reads again what is resident."""
    loaders = [_loader(written, placement, batch_size=40) for placement in ("memory", "stream")]
    expected = [_contents(loader) for loader in loaders]
    receiver, sender = CONTEXT.Pipe()
    process = start(_answer, loaders, sender)
    sender.close()  # so that its end is noticed
    assert receiver.recv() == expected
    process.join()
    assert process.exitcode == 0


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["memory", "stream"])
def test_batches_that_are_kept_are_not_overwritten(
    written: Path, contents: dict[str, np.ndarray], placement: Placement
) -> None:
    for dtype in (None, torch.float32):
        loader = _loader(written, placement, batch_size=10, buffer_nbytes=1, dtype=dtype)
        for batches in (list(loader.epoch()), list(loader.epoch(1))):
            for batch in batches:
                expected = contents["patch/block5/view0"][batch["row"].numpy()]
                np.testing.assert_array_equal(batch["patch"].numpy(), expected.astype(batch["patch"].numpy().dtype))


@pytest.mark.parametrize("placement", ["memory", "stream"])
def test_memory_is_used_again(written: Path, placement: Placement) -> None:
    """Twenty epochs of whole batches need no more buffers than one."""
    loader = _loader(written, placement, np.arange(140), batch_size=10, buffer_nbytes=1)
    for _ in loader.epoch():
        pass
    made = loader._pool.n_made
    for seed in range(20):
        for _ in loader.epoch(seed):
            pass
    assert loader._pool.n_made <= made + 2 <= 14


def test_the_number_of_threads_does_not_matter(written: Path) -> None:
    """Nor do the page cache and the size of reads: the seed alone fixes what comes when."""
    expected = None
    for options in ({"threads": 1}, {"threads": 7}, {"direct": True}, {"direct": False}, {"direct": None}):
        batches = list(_loader(written, "stream", batch_size=10, buffer_nbytes=5000, **options).epoch(4))
        epoch = [(b["row"].tolist(), b["patch"].numpy().tobytes()) for b in batches]
        assert epoch == (expected := expected or epoch)


def test_fewer_threads_where_no_disk_is_waited_for(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.loading.loader.CACHED_READS", 3)
    threads = lambda direct: _loader(written, "stream", direct=direct).threads  # noqa: E731
    assert (threads(True), threads(False)) == (DISK_READS, 3)
    for is_cached, expected in ((True, 3), (False, DISK_READS)):
        monkeypatch.setattr("store.places.local._in_page_cache", lambda _, answer=is_cached: answer)
        assert threads(None) == expected
    assert _loader(written, "stream", threads=5).threads == 5


@pytest.mark.parametrize("direct", [True, False, None])
@pytest.mark.parametrize("row_nbytes", [6000, 16384, 40_000, 3 << 20])
def test_rows_of_any_size(tmp_path: Path, row_nbytes: int, direct: bool | None) -> None:
    """Longer than a digest's piece, than a read, and such as are read straight to their places."""
    n, name = 40 if row_nbytes < 1 << 20 else 3, "patch/block5/view0"
    arrays = [ArrayLayout(name, (n, row_nbytes // 2), "float16", ("image", "channel"), 32, codec="float16")]
    contents = {name: np.random.default_rng(0).normal(size=arrays[0].shape).astype("float16")}
    write(tmp_path / "s", arrays, contents)
    array = FeatureStore.open(tmp_path / "s").array(name)
    for options in ({}, {"shuffle": False}, {"rows": np.arange(0, n, 2)}, {"block_rows": 1}):
        loader = Loader({"x": array}, np.arange(n), placement="stream", direct=direct, dtype=None, batch_size=7, **options)
        for batch in loader.epoch():
            assert same(batch["x"].numpy(), contents[name][batch["row"].numpy()])
    assert same(array.all(), contents[name])


@pytest.mark.parametrize(("how", "n"), [("first", [2, 0]), ("always", [2, 2]), ("never", [0, 0])])
def test_digests_are_compared_when_promised(written: Path, digests: list[int], how: Verify, n: list[int]) -> None:
    """Of each of the first shard's two chunks, once."""
    array = FeatureStore.open(written, verify=how).tokens("patch")
    loader = Loader({"x": array}, np.arange(N), np.arange(64), placement="stream", shuffle=False, batch_size=64, threads=1)
    for expected in n:
        digests.clear()
        assert len(list(loader.epoch())) == 1
        assert len(digests) == expected


def test_damage_that_comes_between_two_epochs(small: Path) -> None:
    """With "always" it is found; "first" has vouched for those rows already."""
    loaders = {
        how: Loader(
            {"x": FeatureStore.open(small, verify=how).tokens("patch")}, np.arange(N), placement="stream", shuffle=False
        )
        for how in ("first", "always")
    }
    for loader in loaders.values():
        assert len(list(loader.epoch())) == 1
    file = small / "patch/block5/view0/c/1/0/0"
    with file.open("r+b") as changed:
        changed.write(bytes(8))
    assert len(list(loaders["first"].epoch())) == 1
    with pytest.raises(StoreError, match=r"c/1/0/0 is damaged"):
        list(loaders["always"].epoch())


@pytest.mark.parametrize(
    ("options", "message"), [({"batch_size": 0}, "batch_size is 0"), ({"rows": [N]}, f"rows {N} to {N} are")]
)
def test_what_does_not_fit(written: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        _loader(written, "memory", **{"rows": None, **options})


def test_what_an_epoch_did(written: Path) -> None:
    loader = _loader(written, "stream")
    for _ in range(2):
        for _ in loader.epoch():
            pass
    assert loader.stats.n_batches == 2 * len(loader)
    assert loader.stats.nbytes == 2 * loader.nbytes
    assert 0 <= loader.stats.wait_s <= loader.stats.total_s
    assert str(Stats(1, 2 * 10**9, 1.0, 4.0)) == "0.50 GB/s, 25% of the time waiting for data"
    assert str(Stats(1, 2 * 10**9, 1.0, 4.0, 2.0)) == "0.50 GB/s, 25% of the time waiting for data, 50% for the GPU"
    assert str(Stats()) == "0.00 GB/s, 0% of the time waiting for data"


def test_quality_of_the_order(written: Path) -> None:
    assert 0.8 < shuffle_quality(_loader(written, "memory").order.visited(0))["displacement"] < 1.2
    assert shuffle_quality(_loader(written, "stream", shuffle=False).order.visited(0))["displacement"] == 0


def _measure(path: Path, answer: Connection) -> None:
    """Send by how many kB an epoch makes this process larger, and how many the array has."""
    array = FeatureStore.open(path).tokens("patch")
    options: dict[str, Any] = {"placement": "stream", "batch_size": 16, "buffer_nbytes": 8 << 20, "threads": 2, "dtype": None}
    sizes = []
    for rows in (np.arange(32), np.arange(array.shape[0])):  # first some, for what is loaded once
        for batch in Loader({"x": array}, np.arange(array.shape[0]), rows, **options).epoch():
            del batch
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    answer.send((sizes[1] - sizes[0], array.nbytes // 1024))


def test_memory_is_bounded(tmp_path: Path) -> None:
    """An epoch over 200 MB takes a small part of that."""
    n, name = 1600, "patch/block5/view0"
    arrays = [ArrayLayout(name, (n, 62_500), "float16", ("image", "channel"), 320, codec="float16")]
    rows = np.random.default_rng(0).integers(0, 100, (n, 62_500), np.int16).astype("float16")
    write(tmp_path / "s", arrays, {name: rows})
    receiver, sender = CONTEXT.Pipe()
    assert status(_measure, tmp_path / "s", sender) == 0
    grown, nbytes = receiver.recv()
    assert nbytes > 190 * 1000
    assert grown < nbytes / 4


def test_what_is_kept_on_a_device_needs_no_copy(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU that holds all features, gone on the CPU: the same batches, and nothing of the host is asked."""
    store = FeatureStore.open(written)
    arrays = {"patch": store.tokens("patch"), "cls": store.tokens("cls")}
    expected = list(Loader(arrays, store.labels, batch_size=32, placement="memory").epoch(5))
    monkeypatch.setattr("store.loading.loader.choose_placement", lambda arrays, *_: (dict.fromkeys(arrays, "device"), "test"))
    loader = Loader(arrays, store.labels, batch_size=32)
    assert loader.placement == "device"
    for batch, other in zip(loader.epoch(5), expected, strict=True):
        assert all(torch.equal(batch[name].nan_to_num(), other[name].nan_to_num()) for name in other)
