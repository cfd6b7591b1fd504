"""Any Zarr v3 implementation reads the arrays, and finds in their metadata what zarr-python would have written."""

import json
from dataclasses import replace

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


def zarrs(folder, name):
    pytest.importorskip("zarrs", reason="the package zarrs is not installed")
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        array = zarr.open_array(folder / name, mode="r")
        assert "Zarrs" in type(array._async_array.codec_pipeline).__name__  # public in later versions
        return np.asarray(array[:])


def tensorstore(folder, name):
    ts = pytest.importorskip("tensorstore", reason="the package tensorstore is not installed")
    store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder / name}/"}}
    return np.asarray(ts.open(store, read=True).result().read().result())


@pytest.mark.parametrize("reader", [zarrs, tensorstore])
def test_every_dtype_and_every_array_of_a_whole_set(every_dtype, written, reader):
    for folder in (every_dtype, written):
        for array in FeatureStore.open(folder).arrays.values():
            assert same(np.ascontiguousarray(reader(folder, array.name)), array.stored(np.arange(array.shape[0])))


def test_metadata_and_chunks_are_those_of_zarr_python(every_dtype, tmp_path):
    for array in FeatureStore.open(every_dtype).arrays.values():
        layout = array.layout
        zarr_twin(tmp_path / "z", layout)[:] = array.stored(np.arange(array.shape[0]))
        ours, theirs = (json.loads((f / array.name / "zarr.json").read_text()) for f in (every_dtype, tmp_path / "z"))
        assert set(ours.pop("attributes")) == {ATTRIBUTE}
        theirs.pop("attributes")
        assert ArrayLayout.from_zarr(array.name, theirs) == replace(layout, codec=None)
        # As text: 0 and 0.0 are equal, but not the same fill value.
        assert json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True), array.name
        for shard in range(layout.n_shards):
            ours, theirs = ((f / layout.file(shard)).read_bytes() for f in (every_dtype, tmp_path / "z"))
            data, tail = layout.data_nbytes(shard), len(layout.index(shard))
            assert ours[:data] + ours[-tail:] == theirs


def test_the_group_is_one_of_zarr(written):
    group = zarr.open_group(written, mode="r")
    assert group.attrs[ATTRIBUTE]["key"] == SPEC.key
    for folder in (p.parent for p in written.rglob("zarr.json")):
        zarr.open(folder, mode="r")
