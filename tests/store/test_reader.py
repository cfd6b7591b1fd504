"""Reading back, against zarr; and every way in which a store can be wrong."""

import os
import shutil
import threading

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store import ArrayLayout, FeatureStore, StoreError, verify
from tests.store.conftest import CONSTANTS, SHARD, SPEC, N, T, edit, flip, layouts, put, put_at, same, values, write

PATCH, CLS = "patch/block5/view0", "cls/block5/view0"


# -- what is read ------------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 200),
    shard_rows=st.integers(1, 4).map(lambda k: 32 * k),
    tail=st.lists(st.integers(1, 5), max_size=3),
    dtype=st.sampled_from(["float16", "float32", "int8", "uint16", "int32", "int64", "uint8"]),
    data=st.data(),
)
def test_any_shape(tmp_path, n, shard_rows, tail, dtype, data):
    shutil.rmtree(tmp_path / "s", ignore_errors=True)
    dimensions = ("image", *(f"d{i}" for i in range(len(tail))))
    arrays = [ArrayLayout("patch/block0/view0", (n, *tail), dtype, dimensions, shard_rows)]
    contents = values(arrays)
    write(tmp_path / "s", arrays, contents)
    expected = contents["patch/block0/view0"]
    wanted = data.draw(st.lists(st.integers(0, n - 1), max_size=40))
    reader = FeatureStore.open(tmp_path / "s").tokens("patch", block=0)
    assert same(reader.rows(wanted), expected[wanted])
    assert same(np.asarray(zarr.open_group(tmp_path / "s", mode="r")["patch/block0/view0"][:]), expected)


def test_what_a_store_says(written, contents, small):
    store = FeatureStore.open(str(written), key=SPEC.key)
    assert (store.spec, len(store), store.n_classes) == (SPEC, N, 3)
    assert store.kinds == ["attention", "average", "cls", "images", "norm", "patch", "pooled", "registers", "statistics"]
    assert store.ids == [f"é{i}" for i in range(N)]
    assert same(store.labels, contents["images/label"])
    assert all(same(store.array(name).all(), expected) for name, expected in CONSTANTS.items())
    patch = store.tokens("patch")
    assert (patch.name, patch.shape, patch.dtype, patch.nbytes) == (PATCH, (N, T, 5), np.dtype("float16"), N * T * 5 * 2)
    assert store.tokens("patch", block=3).name == "patch/block3/view0"
    assert "vit" in repr(store)
    assert PATCH in repr(patch)
    ours(classes=None)(small)
    assert FeatureStore.open(small).n_classes == 3, "without names"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        *((wanted, f"it has rows 0 to {N - 1}") for wanted in ([-1], [0, N])),
        (np.ones(N, bool), r"bool given.*np\.flatnonzero"),
    ],
)
def test_rows_that_there_are_not(written, wanted, message):
    array = FeatureStore.open(written).tokens("cls")
    assert array.rows([]).shape == (0, 5)
    with pytest.raises(StoreError, match=message):
        array.rows(wanted)


def test_short_rows_with_others_between_them_are_read_at_once(written, contents, monkeypatch):
    array, rows = FeatureStore.open(written).array(CLS), np.array([0, 1, 3, 9, 60, 60])
    assert list(array.runs(rows)) == [(0, 5), (5, 6)]
    assert same(array.stored(rows), contents[CLS][rows])
    monkeypatch.setattr("store.format.array.ALIGNMENT", 1)  # now they are long
    assert list(array.runs(rows)) == [(0, 2), (2, 3), (3, 4), (4, 6)]


def test_several_long_rows_are_read_at_a_time(tmp_path, monkeypatch):
    arrays = [ArrayLayout(PATCH, (64, 32, 1024), "float32", ("image", "patch", "channel"), 32)]
    contents = values(arrays)
    write(tmp_path / "s", arrays, contents)
    array, rows = FeatureStore.open(tmp_path / "s").array(PATCH), np.arange(0, 64, 2)[::-1]
    together, read = threading.Barrier(4), array.read_run  # which fewer threads than that never pass
    monkeypatch.setattr(array, "read_run", lambda *of_run: (together.wait(20), read(*of_run)))
    assert same(array.stored(rows), contents[PATCH][rows])
    flip(tmp_path / "s" / PATCH / "c/0/0/0", 20 << 17)
    with pytest.raises(StoreError, match="rows 20 to 20"):
        FeatureStore.open(tmp_path / "s").array(PATCH).stored(rows)


@pytest.mark.parametrize(("how", "n"), [("first", [3, 0]), ("always", [3, 3]), ("never", [0, 0])])
def test_a_digest_is_computed_when_promised(written, digests, how, n):
    """Of the pieces that hold the rows: the first chunk, the second, and the last."""
    reader = FeatureStore.open(written, verify=how).tokens("patch")
    for expected in n:
        digests.clear()
        reader.rows([0, 1, 33, 140])
        assert len(digests) == expected


# -- what is not a store, or not the right one -------------------------------------------------------------------------


def assert_refused(path, *words, **options):
    with pytest.raises(StoreError) as caught:
        FeatureStore.open(path, **options)
    for word in words:
        assert word in str(caught.value)


def test_not_a_store(tmp_path, written, contents):
    """Nothing, another group of Zarr, an unfinished set, one with another key, and one of other images."""
    zarr.open_group(tmp_path / "z", mode="w", zarr_format=3)
    (tmp_path / ".staging" / "one-abc").mkdir(parents=True)
    write(tmp_path / "set", layouts(), contents, n_images=N + 1)
    assert_refused(tmp_path, str(tmp_path), "no zarr.json", "beyondcls extract")
    assert_refused(tmp_path / "nowhere", "not a feature set")
    assert_refused(tmp_path / "z", "does not describe a feature set", "beyondcls")
    assert_refused(tmp_path / "one", "unfinished", "one-abc", "run it again")
    assert_refused(written, SPEC.key, "expected 00ff", key="00ff")
    assert_refused(written, "'allways'; did you mean 'always'", verify="allways")
    assert_refused(tmp_path / "set", f"{N} rows for {N + 1} images")


def ours(**values):
    return lambda path: edit(path, lambda meta: meta["attributes"]["beyondcls"].update(values))


def spec(**values):
    return lambda path: edit(path, lambda meta: meta["attributes"]["beyondcls"]["spec"].update(values))


def longer(by):
    return lambda path: os.truncate(path / LAST, (path / LAST).stat().st_size + by)


LAST = f"{PATCH}/c/2/0/0"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (spec(weights="2" * 32), (f"key {SPEC.key} does not belong", "extract it again")),
        (spec(format_version=3, novelty=1), ("format version 3, expected 2; a later beyondcls wrote it: pip",)),
        (spec(format_version=1), ("format version 1, expected 2; extract it again",)),
        (spec(novelty=1), ("unknown ['novelty']",)),
        (lambda path: edit(path, put_at("shape", 0, N - 1), PATCH), (f"{PATCH}/zarr.json", "was changed")),
        (lambda path: (path / "images/label/zarr.json").unlink(), ("images/label/zarr.json", "is missing")),
        (lambda path: (path / LAST).unlink(), (f"{LAST} is missing", "rows 128 to 149")),  # Zarr would give zeros
        (longer(-1), (LAST, "has 1011 bytes, expected 1012")),
        (longer(1), (LAST, "has 1013 bytes, expected 1012")),
    ],
)
def test_what_is_wrong_is_said(small, damage, words):
    damage(small)
    assert_refused(small, *words)


@pytest.mark.parametrize(
    ("at", "damaged", "sound"), [(0, "rows 64 to 95", [96]), (1000, "rows 96 to 127", [64]), (-1, "its tail", [])]
)
def test_flipped_bit(small, contents, at, damaged, sound):
    """Sound rows of a damaged shard are read; `verify` says what is damaged."""
    flip(small / PATCH / "c/1/0/0", at)
    store, rows = FeatureStore.open(small), [0, *sound, 130]
    assert same(store.tokens("patch").rows(rows), contents[PATCH][rows])
    with pytest.raises(StoreError, match=rf"patch/block5/view0/c/1/0/0 is damaged \({damaged}\)"):
        store.tokens("patch").rows([64, 127])
    careless = FeatureStore.open(small, verify="never").tokens("patch").all()
    assert same(careless, contents[PATCH]) == (at == -1)  # the last byte belongs to the index
    ((name, shard, problem),) = [result for result in verify(small) if result[2]]
    assert (name, shard) == (PATCH, 1)
    assert f"is damaged ({damaged})" in problem


def test_verify_goes_on_after_a_damaged_array(path):
    flip(path / CLS / "zarr.json", 5)
    (path / "patch/block3/view0/c/1/0/0").unlink()
    problems = {(name, shard): problem for name, shard, problem in verify(path)}
    assert {key for key, problem in problems.items() if problem} == {(CLS, -1), ("patch/block3/view0", 1)}
    assert (CLS, 0) not in problems
    assert "is missing" in problems["patch/block3/view0", 1]
    flip(path / "zarr.json", -9)
    with pytest.raises(StoreError, match=r"zarr\.json"):
        list(verify(path))


def test_what_a_copy_does_not_have(path, contents):
    shutil.rmtree(path / "patch")
    shutil.rmtree(path / "pooled")
    edit(path, lambda meta: meta["attributes"]["beyondcls"]["arrays"].pop("pooled/view0"))
    store = FeatureStore.open(path)
    assert {"patch", "pooled"}.isdisjoint(store.kinds)
    assert same(store.tokens("cls").all(), contents[CLS])
    for name, message in (
        (PATCH, f"patch is not in this copy.*dvc pull {path}/patch"),
        ("patch/block4/view0", f"no array 'patch/block4/view0'; it has: patch/block3/view0, {PATCH}"),
        ("cls/block5/view1", r"no array 'cls/block5/view1'"),
        ("pooled/view0", r"has no vectors of the encoder's own pooling \(it has: attention, .*choose an aggregator"),
    ):
        with pytest.raises(StoreError, match=message):
            store.array(name)


# -- hostile metadata --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../patch", "/etc/patch", "patch/../../other", "", "a\\..\\b", "a\0b", "x" * 300])
def test_names_that_leave_the_folder(small, name):
    edit(small, put_at("attributes", "beyondcls", "arrays", name, "0"))
    assert_refused(small, "names arrays outside its folder", "do not use")


@pytest.mark.parametrize("text", ["", "null", '{"attributes": []}', "[" * 100_000, "\ud800"])
def test_no_metadata(small, text):
    data = text.encode(errors="surrogatepass")
    put(small, data, "images/label", vouch=True)
    assert_refused(small, "images/label/zarr.json")
    put(small, data)
    assert_refused(small, "does not describe a feature set")


SHARDING = ("codecs", 0, "configuration")


@pytest.mark.parametrize(
    "way",
    [
        (*SHARDING, "index_location", "start"),
        (*SHARDING, "codecs", 0, "configuration", "endian", "big"),
        (*SHARDING, "index_codecs", [{"name": "bytes", "configuration": {"endian": "little"}}]),
        ("codecs", [{"name": "bytes", "configuration": {"endian": "little"}}]),
        ("chunk_key_encoding", "configuration", "separator", "."),
        ("chunk_grid", "configuration", "chunk_shape", 1, 1),
        (*SHARDING, "chunk_shape", 0, 0),
        ("shape", 0, N - 40),
        ("attributes", "beyondcls", "shards", 0, "rows", [0, 32]),
        ("attributes", "beyondcls", "shards", 0, {"rows": [0, SHARD], "nbytes": 2000}),
    ],
    ids=str,
)
def test_an_array_that_lies_otherwise(small, way):
    """Even when the group vouches for it: this reader would read the wrong bytes."""
    edit(small, put_at(*way), PATCH, vouch=True)
    assert_refused(small, f"{PATCH}/zarr.json", "extract")


@pytest.mark.parametrize("dtype", ["object", "complex64"])
def test_an_array_of_no_plain_numbers(small, dtype):
    """Of eight bytes too, like the labels; as objects they would be addresses."""
    edit(small, put_at("data_type", dtype), "images/label", vouch=True)
    assert_refused(small, "images/label/zarr.json", "plain numbers")
