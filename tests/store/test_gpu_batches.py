"""Batches on a GPU that is late, on one that is not there, and on one that is.

Host memory is not used again before a device has copied it, however late that is.
"""

import ctypes
import gc
from collections import deque
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from store import ArrayLayout, FeatureStore, Loader
from store.codecs import CODECS
from store.loading.loader import decode_rows
from store.loading.placement import PinnedRows, fetch_by_kernel
from store.loading.reading import AHEAD, Lane, Pool
from store.places.place import aligned_memory
from tests.fake_gpu import ON_A_FAKE_GPU
from tests.store.conftest import same, write

NAME = "patch/block5/view0"
COPIES = 4  # of a batch: two arrays, label and row
PLACEMENTS = pytest.mark.parametrize("placement", ["memory", "stream"])


class LateLane(Lane):
    """A device that does nothing before somebody waits for it. It knows addresses: memory is not held for it."""

    def __init__(self):
        self.waiting: deque[tuple[Tensor, int, int]] = deque()  # target, address and bytes
        self.n_copied = self.n_handed = self.n_asked = 0
        self.most_waiting = 0

    def work(self):
        return nullcontext()

    def copy(self, host):
        if isinstance(host, PinnedRows):
            target = torch.full((len(host.rows), host.memory.shape[1]), 99, dtype=torch.uint8)
            copies = [(one, host.memory[row]) for one, row in zip(target, host.rows.tolist(), strict=True)]
        else:
            assert any(begin <= host.data_ptr() <= host.data_ptr() + host.nbytes <= end for begin, end in PinnedPool.ranges)
            target = torch.full_like(host, 99)
            copies = [(target, host)]
        self.waiting += [(one, source.data_ptr(), one.nbytes) for one, source in copies]
        self.n_asked += len(copies)
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        return target

    def mark_at(self, place):
        reach = partial(self.reach, place)
        return SimpleNamespace(place=place, query=lambda: self.n_copied >= place, synchronize=reach)

    def mark(self):
        return self.mark_at(self.n_asked)

    def mark_of_loop(self):
        return self.mark_at(self.n_handed)

    def hand_over(self, values, ready):
        self.n_handed = ready.place

    def wait(self):
        self.reach(self.n_asked)

    def reach(self, place):
        while self.n_copied < place:
            target, address, nbytes = self.waiting.popleft()
            ctypes.memmove(target.data_ptr(), address, nbytes)
            self.n_copied += 1


class PinnedPool(Pool):
    ranges: ClassVar[list[tuple[int, int]]] = []

    def _make(self, nbytes):
        self.n_made += 1
        memory = aligned_memory(nbytes)
        begin = np.frombuffer(memory, np.uint8).ctypes.data if nbytes else 0
        self.ranges.append((begin, begin + nbytes))
        return memory


@pytest.fixture
def lane(monkeypatch):
    lane = LateLane()
    PinnedPool.ranges = []
    monkeypatch.setattr("store.loading.loader.Pool", PinnedPool)
    monkeypatch.setattr("store.loading.loader.Lane", lambda device: lane)
    return lane


def loader_of(path, placement):
    store = FeatureStore.open(path)
    arrays = {"patch": store.tokens("patch"), "number": store.array("images/label")}
    # Windows of one batch, of a few kilobytes: memory is used again all the time.
    options = {"device": "cuda", "placement": placement, "dtype": None, "buffer_nbytes": 1, "threads": 2}
    return Loader(arrays, store.labels, np.arange(140), 10, **options)


def assert_right(batches, contents, whole=True):
    for batch in batches:
        assert same(batch["patch"].numpy(), contents[NAME][batch["row"].numpy()])
        assert torch.equal(batch["number"], batch["row"] % 3)
        assert torch.equal(batch["label"], batch["row"] % 3)
    assert not whole or sorted(row for batch in batches for row in batch["row"].tolist()) == list(range(140))


@pytest.fixture
def pinned(monkeypatch):
    """Addresses of features in memory, all of which a device fetches."""
    addresses: list[int] = []
    monkeypatch.setattr("store.loading.reading.LONG_ROW", 1)
    monkeypatch.setattr("store.loading.reading.pin", lambda memory: addresses.append(memory.data_ptr()) or True)
    monkeypatch.setattr("store.loading.reading.unpin", lambda given: [addresses.remove(one) for one in given])
    return addresses


def test_a_device_fetches_rows_from_memory(written, contents, lane, pinned):
    loader = loader_of(written, "memory")
    assert len(pinned) == 2
    made = loader._pool.n_made
    for number in range(2):
        batches = list(loader.epoch(number))
        assert_right(batches, contents)
    assert loader._pool.n_made - made <= 2 * (AHEAD + 2), "of labels and rows; features are not gathered first"
    del loader, batches
    gc.collect()
    assert not pinned


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, kernels are compiled for it")
@pytest.mark.parametrize("nbytes", [8, 2048 * 16 + 24])
def test_rows_fetched_by_a_kernel(nbytes):
    """As one by one."""
    memory, rows = torch.randint(256, (9, nbytes), dtype=torch.uint8), torch.tensor([3, 0, 8, 3])
    out = torch.full((5, nbytes), 7, dtype=torch.uint8)
    fetch_by_kernel(memory, rows, out[:4])
    assert torch.equal(out[:4], memory[rows])
    assert (out[4] == 7).all()
    assert torch.equal(PinnedRows(memory, rows).to(torch.device("cpu")), memory[rows])
    assert PinnedRows(memory, rows[:0]).to(torch.device("cpu")).shape == (0, nbytes)


@PLACEMENTS
def test_a_late_device(written, contents, lane, placement):
    """Batches that are kept are right in the end, and those that the device has got to are right at once."""
    loader = loader_of(written, placement)
    for number in range(3):
        batches = []
        for batch in loader.epoch(number):
            batches.append(batch)
            if number == 2:
                lane.mark_of_loop().synchronize()  # as a training loop that asks for its loss
                assert_right(batches[-1:], contents, whole=False)
        assert not lane.waiting
        assert_right(batches, contents)


@PLACEMENTS
def test_memory_is_bounded(written, lane, placement):
    """Where nothing else waits for the device, the loader does: for the copies, and for the loop's work."""
    loader, made = loader_of(written, placement), []
    for seed in range(5):
        for _ in loader.epoch(seed):
            assert lane.most_waiting <= COPIES * (AHEAD + 1)
        made.append(loader._pool.n_made)
    assert made[-1] <= made[0] + 2
    assert loader.stats.device_wait_s > 0


@PLACEMENTS
def test_an_epoch_that_is_left_early(written, contents, lane, placement):
    """What it handed out is copied before its memory is used again."""
    loader = loader_of(written, placement)
    batches = loader.epoch(1)
    kept = [next(batches) for _ in range(4)]
    batches.close()
    assert not lane.waiting
    list(loader.epoch(2))
    assert_right(kept, contents, whole=False)


def test_the_loop_is_not_far_ahead_of_the_device(written, lane):
    """Of what it has handed out, the device has done all but two batches when it is asked for the next."""
    reached = []
    lane.mark_of_loop = lambda: SimpleNamespace(synchronize=partial(reached.append, lane.n_handed))
    for number, _ in enumerate(loader_of(written, "stream").epoch()):
        assert lane.n_handed == COPIES * (number + 1), "the loop's queue waits for all of the batch"
        assert len(reached) == max(0, number - AHEAD)
    assert reached == [COPIES * (number + 1) for number in range(len(reached))], "in their order"


# -- a GPU that is not there: PyTorch works out shapes and devices alone, and a tensor on the wrong one is an error -------

CODEC = pytest.mark.parametrize("codec", CODECS)
DTYPES = pytest.mark.parametrize("dtype", [None, torch.bfloat16])
N, T, D = 40, 16, 768  # longer than others, some rows are fetched from pinned memory


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codecs")
    return {codec: stored_as(codec, folder / codec)[0] for codec in CODECS}


def stored_as(codec, folder):
    """A set, and the values that it was made of."""
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(N, T, D)).astype(np.float32))
    encoded = CODECS[codec].encode(values)
    layouts, contents = [], {}
    for suffix, (shape, dtype) in CODECS[codec].parts((N, T, D)).items():
        axes = ("image", "patch", "channel")[: len(shape)]
        layouts.append(ArrayLayout(NAME + suffix, shape, dtype, axes, 32, codec=codec if suffix == "" else None))
        contents[NAME + suffix] = encoded[suffix].contiguous().view(getattr(torch, dtype)).numpy()
    write(folder, layouts, contents)
    return FeatureStore.open(folder), values


def fake(values):
    return torch.empty(values.shape, dtype=values.dtype, device="cuda")


@ON_A_FAKE_GPU
@CODEC
@DTYPES
def test_decoded_where_they_are(stores, codec, dtype):
    """In the dtype that is asked for, or that of the codec."""
    array = stores[codec].array(NAME)
    stored = [part.stored(np.arange(4)).reshape(4, -1).view(np.uint8) for part in (array, array.scale) if part is not None]
    main, scale, *_ = [*map(torch.from_numpy, stored), None]
    with FakeTensorMode():
        values = decode_rows(array, fake(main), None if scale is None else fake(scale), dtype, Pool())
    assert (values.device.type, tuple(values.shape)) == ("cuda", (4, T, D))
    assert values.dtype == (dtype or CODECS[codec].decoded)
    assert decode_rows(array, main, scale, dtype, Pool()).dtype == values.dtype, "as on the CPU"


class Journeys(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        came_from = {value.device.type for value in arguments if isinstance(value, Tensor)}
        leaves = isinstance(out, Tensor) and out.device.type == "cpu" and "cuda" in came_from
        if leaves or "_local_scalar_dense" in str(function) or "nonzero" in str(function):
            self.found.append(str(function))
        return out


def on_fake_gpu(loader):
    """All that it keeps, moved to the GPU of the FakeTensorMode that this is called in."""
    resident = loader._resident
    loader.device = resident.device = torch.device("cuda")
    loader.places = dict.fromkeys(loader.places, "device")
    resident._slot = fake(resident._slot)
    resident._values = {key: fake(values) for key, values in resident._values.items()}
    return loader


@ON_A_FAKE_GPU
@pytest.mark.parametrize(("codec", "n_views"), [("float16", 1), ("float16", 2), ("int4", 1), ("int4", 2)])
def test_what_is_kept_on_the_device_is_gathered_there(stores, codec, n_views):
    """By indices that are there too: an epoch brings its order, and nothing is asked of the device after that."""
    store = stores[codec]
    loader = Loader({"x": [store.array(NAME)] * n_views}, np.arange(N), batch_size=16, placement="memory", dtype=None)
    with FakeTensorMode(allow_non_fake_inputs=True), Journeys() as journeys:
        batches = list(on_fake_gpu(loader).epoch(1))
    assert [tuple(batch["x"].shape) for batch in batches] == [(16, T, D), (16, T, D), (8, T, D)]
    for batch in batches:
        assert {values.device.type for values in batch.values()} == {"cuda"}
        assert batch["x"].dtype == CODECS[codec].decoded
    assert journeys.found == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@CODEC
@pytest.mark.parametrize("placement", ["device", "memory", "stream"])
@DTYPES
def test_a_gpu_that_is_there(stores, codec, placement, dtype):
    """The bits that the CPU gives, whatever way they went."""
    array = stores[codec].array(NAME)
    rows = torch.arange(N)
    (expected,) = Loader({"x": array}, rows.numpy(), batch_size=N, shuffle=False, dtype=dtype).epoch()
    loader = Loader({"x": array}, rows.numpy(), None, 7, True, "cuda", placement, dtype=dtype, buffer_nbytes=1)
    batches = [batch for seed in range(2) for batch in loader.epoch(seed)]
    assert sorted(row for batch in batches for row in batch["row"].tolist()) == sorted([*range(N)] * 2)
    for batch in batches:
        assert {values.device.type for values in batch.values()} == {"cuda"}
        values, wanted = batch["x"].cpu(), expected["x"][batch["row"].cpu()]
        assert values.dtype == wanted.dtype
        assert torch.equal(values.view(torch.uint8), wanted.view(torch.uint8))
        assert torch.equal(batch["label"], batch["row"])
