"""A GPU that is not there: PyTorch works out shapes and devices alone, and a tensor on the wrong one is an error."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from store import ArrayLayout, FeatureStore, Loader
from store.codecs import CODECS, SCALE
from store.loading.loader import decode_rows
from store.loading.reading import Pool
from tests.fake_gpu import ON_A_FAKE_GPU
from tests.store.conftest import write

pytestmark = ON_A_FAKE_GPU
N, T, D, NAME = 40, 16, 768, "patch/block5/view0"  # longer than others, some rows are fetched from pinned memory
CODEC = pytest.mark.parametrize("codec", CODECS)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A set of each codec."""
    folder = tmp_path_factory.mktemp("codecs")
    return {codec: stored_as(codec, folder / codec) for codec in CODECS}


def stored_as(codec, folder):
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(N, T, D)).astype(np.float32))
    encoded = CODECS[codec].encode(values)
    layouts, contents = [], {}
    for suffix, (shape, dtype) in CODECS[codec].parts((N, T, D)).items():
        axes = ("image", "patch", "channel")[: len(shape)]
        layouts.append(ArrayLayout(NAME + suffix, shape, dtype, axes, 32, codec=codec if suffix == "" else None))
        contents[NAME + suffix] = encoded[suffix].contiguous().view(getattr(torch, dtype)).numpy()
    write(folder, layouts, contents)
    return FeatureStore.open(folder)


def fake(values):
    return torch.empty(values.shape, dtype=values.dtype, device="cuda")


@CODEC
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_decoded_where_they_are(stores, codec, dtype):
    """In the dtype that is asked for, or that of the codec."""
    array = stores[codec].array(NAME)
    stored = [part and part.stored(np.arange(4)).reshape(4, -1).view(np.uint8) for part in (array, array.scale)]
    parts = [None if part is None else torch.from_numpy(part) for part in stored]
    with FakeTensorMode():
        values = decode_rows(array, *(None if part is None else fake(part) for part in parts), dtype, Pool())
    assert (values.device.type, tuple(values.shape)) == ("cuda", (4, T, D))
    assert values.dtype == (dtype or CODECS[codec].decoded)
    assert decode_rows(array, *parts, dtype, Pool()).dtype == values.dtype, "as on the CPU"


class Journeys(TorchDispatchMode):
    """Notes what leaves a device."""

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


def _on_fake_gpu(loader):
    """All that it keeps, moved to the GPU of the FakeTensorMode that this is called in."""
    resident = loader._resident
    loader.device = resident.device = torch.device("cuda")
    loader.places = dict.fromkeys(loader.places, "device")
    resident._slot = fake(resident._slot)
    resident._values = {key: fake(values) for key, values in resident._values.items()}
    return loader


@CODEC
@pytest.mark.parametrize("n_views", [1, 2])
def test_what_is_kept_on_the_device_is_gathered_there(stores, codec, n_views):
    """By indices that are there too: an epoch brings its order, and nothing is asked of the device after that."""
    store = stores[codec]
    loader = Loader({"x": [store.array(NAME)] * n_views}, np.arange(N), batch_size=16, placement="memory", dtype=None)
    with FakeTensorMode(allow_non_fake_inputs=True), Journeys() as journeys:
        batches = list(_on_fake_gpu(loader).epoch(1))
    assert [tuple(batch["x"].shape) for batch in batches] == [(16, T, D), (16, T, D), (8, T, D)]
    for batch in batches:
        assert {values.device.type for values in batch.values()} == {"cuda"}
        assert batch["x"].dtype == CODECS[codec].decoded
    assert journeys.found == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@CODEC
@pytest.mark.parametrize("placement", ["device", "memory", "stream"])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
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
