"""Every row once an epoch, in an order that the seed fixes, wherever the arrays are."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from store import FeatureStore, Loader, StoreError
from store.loader import Placement
from tests.store.conftest import INVALID, N

BOTH = pytest.mark.parametrize("placement", ["memory", "stream"])


def _loader(path: Path, placement: Placement, rows: np.ndarray | None = None, **arguments: int | bool) -> Loader:
    store = FeatureStore.open(path)
    arrays = {"patch": store.tokens("patch"), "number": store.array("images/label")}
    return Loader(arrays, np.arange(N), rows, placement=placement, **{"batch_size": 32, **arguments})  # type: ignore[arg-type]


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
def test_arrays_and_labels_stay_together(written: Path, contents: dict[str, np.ndarray], placement: Placement) -> None:
    for batch in _loader(written, placement).epoch(1):
        rows = batch["label"].numpy()
        np.testing.assert_array_equal(batch["patch"].numpy(), contents["patch/block5/view0"][rows].astype("float32"))
        np.testing.assert_array_equal(batch["number"].numpy(), contents["images/label"][rows])
        assert (batch["patch"].dtype, batch["number"].dtype, batch["label"].dtype) == (torch.float32, torch.int64, torch.int64)


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
    """A batch of one block has neighbouring rows, shuffled among themselves."""
    for batch in _loader(written, "stream", block_rows=16, batch_size=16).epoch():
        rows = batch["label"].tolist()
        if len(rows) == 16 and rows != sorted(rows) and max(rows) - min(rows) == 15:
            return
    pytest.fail("no batch holds a whole block")


def test_auto(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = _loader(written, "auto")
    assert loader.placement == "memory"
    assert loader.nbytes == N * (3 * 5 * 2 + 8)
    monkeypatch.setattr("store.loader.free_memory", lambda device: 2 * loader.nbytes)
    assert _loader(written, "auto").placement == "stream"
    monkeypatch.setattr("store.loader.free_memory", lambda device: 2 * loader.nbytes + 1)
    assert _loader(written, "auto").placement == "memory"


def _damage(path: Path) -> None:
    shard = path / "patch/block5/view0/c/1/0/0"
    data = bytearray(shard.read_bytes())
    data[5] ^= 1
    shard.write_bytes(data)


def test_errors_of_the_reading_thread_reach_the_consumer(small: Path) -> None:
    _damage(small)
    before = threading.active_count()
    batches = _loader(small, "stream", shuffle=False).epoch()
    assert next(batches)["label"].tolist() == list(range(32))
    next(batches)
    with pytest.raises(StoreError, match=r"patch/block5/view0/c/1/0/0 is damaged"):
        next(batches)
    assert threading.active_count() == before


def test_damage_stops_a_resident_loader_too(small: Path) -> None:
    _damage(small)
    with pytest.raises(StoreError, match="is damaged"):
        _loader(small, "memory")


def test_an_epoch_that_is_left_early_leaves_no_thread(written: Path) -> None:
    before = threading.active_count()
    batches = _loader(written, "stream", batch_size=1).epoch()
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


@BOTH
def test_a_mask_is_no_list_of_rows(written: Path, placement: Placement) -> None:
    with pytest.raises(StoreError, match=r"np\.flatnonzero"):
        list(_loader(written, placement, FeatureStore.open(written).valid, shuffle=False).epoch())


def test_labels_of_another_set(written: Path) -> None:
    store = FeatureStore.open(written)
    with pytest.raises(StoreError, match=f"patch/block5/view0 has {N} rows, but there are {N - 1} labels"):
        Loader({"patch": store.tokens("patch")}, np.arange(N - 1))


@BOTH
def test_no_rows_give_no_batch(written: Path, placement: Placement) -> None:
    assert _rows(_loader(written, placement, np.array([], dtype=np.int64), shuffle=False)) == []
