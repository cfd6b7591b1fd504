"""Feature sets as data sets of torch: by themselves, and in workers of a DataLoader."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from store import StoreError
from tests.features import write_features

N = 100


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Shards of 64 rows."""
    return write_features(tmp_path_factory.mktemp("sets") / "a", N)


def doubled(tokens):
    return 2 * tokens


def test_items_are_tokens_and_labels(store):
    dataset = pickle.loads(pickle.dumps(store.to_torch_dataset()))  # as sent to another process
    expected = store.tokens("patch").all()
    assert len(dataset) == N
    assert repr(dataset) == "TokenDataset(ArrayReader('patch/block1/view0', [100, 9, 8], float16), 100 images)"
    for row in (0, 99, -1):
        tokens, label = dataset[row]
        assert tokens.dtype == torch.float32
        assert torch.equal(tokens, torch.from_numpy(expected[row]).float())
        assert label == store.labels[row]
    assert len(list(dataset)) == N, "indexing ends"


def test_many_are_read_at_once(store, monkeypatch):
    dataset = store.to_torch_dataset("cls", dtype=None, transform=doubled)
    calls = []
    rows = type(dataset.array).rows
    monkeypatch.setattr(type(dataset.array), "rows", lambda array, indices: calls.append(len(indices)) or rows(array, indices))
    (tokens, labels), *_ = DataLoader(dataset, batch_size=32, sampler=[70, 3, 3, *range(29)])
    assert calls == [32]
    assert tokens.dtype == torch.float16
    np.testing.assert_array_equal(tokens[:3], 2 * rows(dataset.array, [70, 3, 3]))
    assert labels[:3].tolist() == store.labels[[70, 3, 3]].tolist()


def test_in_worker_processes(store):
    dataset = store.to_torch_dataset(rows=np.arange(90)[::-1], transform=doubled, dtype="float64")
    dataset[0]  # opens files here
    batches = list(DataLoader(dataset, batch_size=30, num_workers=2, multiprocessing_context="fork"))
    np.testing.assert_array_equal(
        torch.cat([tokens for tokens, _ in batches]), 2.0 * store.tokens("patch").rows(range(90))[::-1]
    )
    np.testing.assert_array_equal(torch.cat([labels for _, labels in batches]), store.labels[:90][::-1])


def test_several_labels(tmp_path):
    store = write_features(tmp_path / "a", 12, multilabel=True)
    (_, labels), *_ = DataLoader(store.to_torch_dataset("cls"), batch_size=4)
    assert (labels.dtype, labels.tolist()) == (torch.float32, store.labels[:4].tolist())


def test_images_that_cannot_be_trained_on(tmp_path):
    damaged = write_features(tmp_path / "a", 12, invalid=[4, 7])
    assert len(damaged.to_torch_dataset(rows=np.flatnonzero(damaged.labelled))) == 10
    with pytest.raises(StoreError, match=r"2 of 12 images of .* first row 4; .* rows=np.flatnonzero\(store.labelled"):
        damaged.to_torch_dataset()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": np.ones(N, bool)}, "bool given; turn a mask into rows"),
        ({"rows": [3, 100]}, "rows 3 to 100 are asked for, .* has rows 0 to 99"),
        *(({"dtype": dtype}, "expected float32, float16") for dtype in ("float31", "nn", torch.int64)),
        ({"block": 7}, "has no array 'patch/block7/view0'"),
    ],
)
def test_what_cannot_be(store, options, message):
    with pytest.raises(StoreError, match=message):
        store.to_torch_dataset(**options)
