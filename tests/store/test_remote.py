"""Reading from an object store: the same values, few and long requests, several at a time, and no data but all of it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest

from store import ArrayLayout, FeatureStore, Loader, StoreError, verify
from store.places.object_store import PIECE_NBYTES, REQUESTS, ObjectStore
from tests.folders import files
from tests.s3 import served
from tests.store.conftest import SPEC, N, same, values, write
from tests.store.service import Service

WIDE = "patch/block5/view0"
ROW = 1 << 15  # bytes of a row: a digest for two
WIDE_N, WIDE_SHARD = 2000, 640  # shards of 20 MiB, the last one short


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    Service.reset()
    yield
    Service.reset()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wide") / "one"
    arrays = [
        ArrayLayout("images/label", (WIDE_N,), "int64", ("image",), WIDE_SHARD),
        ArrayLayout(WIDE, (WIDE_N, 16, ROW // 32), "float16", ("image", "patch", "channel"), WIDE_SHARD, codec="float16"),
    ]
    write(out, arrays, values(arrays))
    return out


@pytest.mark.parametrize("rows", [[149, 2, 2, 4], [63, 64], range(0, N, 7), []])
def test_some_rows(written: Path, contents: dict[str, np.ndarray], rows: list[int]) -> None:
    for verified in ("first", "never", "always"):
        array = FeatureStore.open(f"service://{written}", verify=verified).tokens("patch")  # type: ignore[arg-type]
        for _ in range(2):  # compared, and compared already
            assert same(array.rows(np.array(rows, int)), contents[WIDE][np.array(rows, int)])


def test_everything_is_asked_for_once_in_long_pieces(wide: Path) -> None:
    array = FeatureStore.open(f"service://{wide}").tokens("patch")
    expected = FeatureStore.open(wide).tokens("patch").all()
    Service.reset()
    assert same(array.all(), expected)
    assert Service.nbytes() <= sum(shard["nbytes"] for shard in array.shards)
    tails = array.layout.n_shards
    assert len(Service.data()) == tails + sum(-(-array.layout.data_nbytes(i) // PIECE_NBYTES) for i in range(tails))
    assert max(stop - start for _, start, stop in Service.data()) == PIECE_NBYTES


def test_rows_that_share_a_digest_are_one_request(written: Path, wide: Path) -> None:
    """And a row costs no more than its digest and the tail."""
    array = FeatureStore.open(f"service://{written}").tokens("patch")
    assert array.layout.checked_rows == 32
    for rows, n_requests in (([0, 5, 9, 31, 40], 2), ([0, 100], 3)):  # with the tails
        Service.reset()
        array.rows(rows)
        assert len(Service.data()) == n_requests
    array = FeatureStore.open(f"service://{wide}").tokens("patch")
    Service.reset()
    array.rows([700])
    tail = array.layout.nbytes(1) - array.layout.data_nbytes(1)
    assert sorted(stop - start for _, start, stop in Service.data()) == [tail, array.layout.checked_rows * ROW]


def test_a_store_is_opened_in_a_few_rounds(written: Path) -> None:
    Service.delay = 0.05
    FeatureStore.open(f"service://{written}")
    assert len(Service.asked) == len(set(Service.asked)) > 20
    assert 10 <= Service.most <= REQUESTS
    assert Service.listed == 1, "a request a file would take minutes"


def test_verify_reads_everything_once(wide: Path, written: Path) -> None:
    for path in (wide, written):
        Service.reset()
        Service.delay = 0.02
        assert list(verify(f"service://{path}")) == list(verify(path))
        assert Service.nbytes() == sum(f.stat().st_size for f in path.rglob("*") if f.is_file() and f.name != "zarr.json")
        assert len(Service.data()) == len(set(Service.data()))
        assert Service.most > 3
    Service.answer = staticmethod(lambda path, data: b"\1" + data[1:] if path.endswith(f"{WIDE}/c/1/0/0") else data)
    assert [(name, shard) for name, shard, problem in verify(f"service://{wide}") if problem] == [(WIDE, 1)]


@pytest.mark.parametrize("placement", ["stream", "memory"])
def test_an_epoch_asks_for_long_pieces_once(wide: Path, placement: Any) -> None:
    expected = FeatureStore.open(wide).tokens("patch").all()
    store = FeatureStore.open(f"service://{wide}")
    array, labels = store.tokens("patch"), store.labels
    Service.reset()
    Service.delay = 0.05
    loader = Loader({"x": array}, labels, placement=placement, dtype=None, batch_size=128)
    assert loader.threads == REQUESTS
    batches = list(loader.epoch(1))
    assert all(same(batch["x"].numpy(), expected[batch["row"].numpy()]) for batch in batches)
    assert sorted(row for batch in batches for row in batch["row"].tolist()) == list(range(WIDE_N))
    assert Service.nbytes() <= sum(shard["nbytes"] for shard in array.shards)
    assert len(Service.data()) <= array.layout.n_shards * (2 + WIDE_SHARD * ROW // PIECE_NBYTES)
    assert 5 <= Service.most <= REQUESTS


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda _, data: data[:-1], rf"{WIDE}/c/0/0/0 returned {2 * ROW - 1} bytes, expected {2 * ROW} \(from byte {ROW} on\)"),
        (lambda path, _: Path(path).read_bytes(), f"bytes, expected {2 * ROW} "),
    ],
    ids=["a byte less", "ranges are ignored"],
)
def test_an_answer_of_another_length(wide: Path, answer: Any, message: str) -> None:
    array = FeatureStore.open(f"service://{wide}", verify="never").tokens("patch")
    Service.answer = staticmethod(answer)
    with pytest.raises(StoreError, match=message):
        array.rows([1, 2])


@pytest.mark.parametrize(("placement", "error"), [("stream", ConnectionError("reset by peer")), ("memory", TimeoutError())])
def test_a_lost_connection(wide: Path, placement: Any, error: Exception) -> None:
    """Ends the epoch at once, with what it was."""
    store = FeatureStore.open(f"service://{wide}")
    labels = store.labels

    def answer(path: str, data: bytes) -> bytes:
        if path.endswith("c/2/0/0"):
            raise error
        return data

    Service.answer = staticmethod(answer)
    reason = str(error) or type(error).__name__
    with pytest.raises(StoreError, match=f"{WIDE}/c/2/0/0 cannot be read: {reason}; check the network"):
        for _ in Loader({"x": store.tokens("patch")}, labels, placement=placement).epoch():
            pass
    with pytest.raises(StoreError, match=f"cannot be read: {reason}"):
        store.tokens("patch").all()


@pytest.fixture
def bucket() -> Iterator[Any]:
    with served("bucket") as fs:
        yield fs


def test_s3(bucket: Any, written_small: Path, contents: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 7}})
    bucket.pipe({f"bucket/sets/one/{name}": content for name, content in files(written_small).items()})
    store = FeatureStore.open("s3://bucket/sets/one", key=SPEC.key)
    assert isinstance(store.place, ObjectStore)
    assert store.place._fs.config_kwargs == {"max_pool_connections": REQUESTS, "read_timeout": 7}
    rows = np.random.default_rng(0).permutation(N)
    for name, got in store.rows(rows).items():
        assert same(got, contents[name][rows])
    assert all(problem is None for _, _, problem in verify("s3://bucket/sets/one"))
    half = os.urandom(bucket.size(f"bucket/sets/one/{WIDE}/c/0/0/0") // 2)
    bucket.pipe(f"bucket/sets/one/{WIDE}/c/0/0/0", half)
    with pytest.raises(StoreError, match=f"s3://bucket/sets/one/{WIDE}/c/0/0/0 (returned|cannot be read)"):
        store.place.open(f"{WIDE}/c/0/0/0").read(len(half) - 10, 20, memoryview(b""))
    with pytest.raises(StoreError, match=f"{WIDE}/c/0/0/0 has {len(half)} bytes, expected"):
        FeatureStore.open("s3://bucket/sets/one")
