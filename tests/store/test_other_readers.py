"""Any Zarr v3 implementation reads the arrays, and finds in their metadata what zarr-python would have written."""

import json

import numpy as np
import pytest
import zarr

from store import ArrayLayout, FeatureStore
from store.codecs import CODECS
from store.format.layout import ATTRIBUTE
from tests.store.conftest import SPEC, same, values, write, zarr_twin

N = 75
DTYPES = sorted({codec.zarr_dtype for codec in CODECS.values()} | {"int32", "int64"})


@pytest.fixture(scope="module")
def every_dtype(tmp_path_factory):
    """A set with an array of each dtype and of one to four axes; one shard holds zeros alone."""
    arrays = [ArrayLayout("images/label", (N,), "int64", ("image",), 64)]
    for i, dtype in enumerate(DTYPES):
        tail = (2, 3, 5)[: i % 3 + 1]
        arrays.append(ArrayLayout(f"patch/block{i}/view0", (N, *tail), dtype, ("image", "a", "b", "c")[: len(tail) + 1], 64))
    contents = values(arrays)
    contents["patch/block1/view0"][:64] = 0
    out = tmp_path_factory.mktemp("dtypes") / "s"
    write(out, arrays, contents)
    return out


def _python(folder, name):
    return np.asarray(zarr.open_group(folder, mode="r")[name][:])


def _zarrs(folder, name):
    pytest.importorskip("zarrs", reason="the package zarrs is not installed")
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        array = zarr.open_array(folder / name, mode="r")
        assert "Zarrs" in type(array._async_array.codec_pipeline).__name__  # public in later versions
        return np.asarray(array[:])


def _tensorstore(folder, name):
    ts = pytest.importorskip("tensorstore", reason="the package tensorstore is not installed")
    store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder / name}/"}}
    return np.asarray(ts.open(store, read=True).result().read().result())


READERS = pytest.mark.parametrize("reader", [_python, _zarrs, _tensorstore], ids=["zarr-python", "zarrs", "tensorstore"])


def _arrays(folder):
    yield from FeatureStore.open(folder).arrays.values()


@READERS
def test_every_dtype_and_every_array_of_a_whole_set(every_dtype, written, reader):
    for folder in (every_dtype, written):
        for array in _arrays(folder):
            assert same(np.ascontiguousarray(reader(folder, array.name)), array.stored(np.arange(array.shape[0])))


def test_metadata_are_those_of_zarr_python(every_dtype, tmp_path):
    for array in _arrays(every_dtype):
        zarr_twin(tmp_path / "z", array.layout)
        ours, theirs = (json.loads((f / array.name / "zarr.json").read_text()) for f in (every_dtype, tmp_path / "z"))
        assert set(ours.pop("attributes")) == {ATTRIBUTE}
        theirs.pop("attributes")
        assert ours == theirs, array.name
        assert _types(ours) == _types(theirs), array.name


def _types(node):
    """0 and 0.0 are equal, but not the same fill value."""
    if isinstance(node, dict):
        return {key: _types(value) for key, value in node.items()}
    return [_types(value) for value in node] if isinstance(node, list) else type(node).__name__


def test_chunks_are_those_of_zarr_python(every_dtype, tmp_path):
    for array in _arrays(every_dtype):
        layout = array.layout
        zarr_twin(tmp_path / "z", layout)[:] = array.stored(np.arange(array.shape[0]))
        for shard in range(layout.n_shards):
            ours, theirs = ((f / layout.file(shard)).read_bytes() for f in (every_dtype, tmp_path / "z"))
            data, tail = layout.data_nbytes(shard), len(layout.index(shard))
            assert ours[:data] + ours[-tail:] == theirs


def test_the_group_is_one_of_zarr(written):
    group = zarr.open_group(written, mode="r")
    assert group.attrs[ATTRIBUTE]["key"] == SPEC.key
    for folder in (p.parent for p in written.rglob("zarr.json")):
        zarr.open(folder, mode="r")
