"""Reading back, against zarr; and every way in which a store can be wrong."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store import ArrayLayout, FeatureStore, StoreError, verify
from store.format.array import Verify
from tests.store.conftest import CONSTANTS, SHARD, SPEC, N, T, edit, flip, layouts, put, put_at, same, values, write

Contents = dict[str, np.ndarray]


# -- what is read ------------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 200),
    shard_rows=st.integers(1, 4).map(lambda k: 32 * k),
    tail=st.lists(st.integers(1, 5), max_size=3),
    dtype=st.sampled_from(["float16", "float32", "int8", "uint16", "int32", "int64", "uint8"]),
    data=st.data(),
)
def test_any_shape(tmp_path: Path, n: int, shard_rows: int, tail: list[int], dtype: str, data: st.DataObject) -> None:
    shutil.rmtree(tmp_path / "s", ignore_errors=True)
    dimensions = ("image", *(f"d{i}" for i in range(len(tail))))
    arrays = [ArrayLayout("patch/block0/view0", (n, *tail), dtype, dimensions, shard_rows)]
    contents = values(arrays)
    write(tmp_path / "s", arrays, contents)
    expected = contents["patch/block0/view0"]
    wanted = data.draw(st.lists(st.integers(0, n - 1), max_size=40))
    reader = FeatureStore.open(tmp_path / "s").tokens("patch", block=0)
    assert same(reader.rows(wanted), expected[wanted])
    assert same(np.asarray(zarr.open_group(tmp_path / "s", mode="r")["patch/block0/view0"][:]), expected)  # type: ignore[index]


def test_constants(written: Path) -> None:
    store, plain = FeatureStore.open(written), zarr.open_group(written, mode="r")
    for name, expected in CONSTANTS.items():
        assert same(store.array(name).all(), expected)
        assert same(np.asarray(plain[name][:]), expected)  # type: ignore[index]


def test_what_a_store_says(written: Path, contents: Contents) -> None:
    store = FeatureStore.open(str(written), key=SPEC.key)
    assert store.spec == SPEC
    assert len(store) == N
    assert store.kinds == ["attention", "average", "cls", "images", "norm", "patch", "pooled", "registers", "statistics"]
    assert store.ids[:2] == ["é0", "é1"]
    assert store.ids[-1] == f"é{N - 1}"
    assert same(store.labels, contents["images/label"])
    assert store.n_classes == 3
    patch = store.tokens("patch")
    assert (patch.name, patch.shape, patch.dtype) == ("patch/block5/view0", (N, T, 5), np.dtype("float16"))
    assert patch.nbytes == N * T * 5 * 2
    assert store.tokens("patch", block=3).name == "patch/block3/view0"
    assert "vit" in repr(store)
    assert "patch/block5/view0" in repr(patch)


@pytest.mark.parametrize("wanted", [[-1], [0, N]])
def test_rows_out_of_range(written: Path, wanted: list[int]) -> None:
    with pytest.raises(StoreError, match=f"it has rows 0 to {N - 1}"):
        FeatureStore.open(written).tokens("cls").rows(wanted)


def test_a_mask_is_no_list_of_rows(written: Path) -> None:
    store = FeatureStore.open(written)
    assert store.tokens("cls").rows([]).shape == (0, 5)
    with pytest.raises(StoreError, match=r"bool given.*np\.flatnonzero"):
        store.tokens("cls").rows(store.valid)


# -- what is not a store, or not the right one -------------------------------------------------------------------------


def _fails(path: Path, *words: str, **arguments: Any) -> None:
    with pytest.raises(StoreError) as caught:
        FeatureStore.open(path, **arguments)
    for word in words:
        assert word in str(caught.value)


def test_not_a_store(tmp_path: Path, written: Path, contents: Contents) -> None:
    """Nothing, another group of Zarr, an unfinished set, one with another key, and one of other images."""
    zarr.open_group(tmp_path / "z", mode="w", zarr_format=3)
    (tmp_path / ".staging" / "one-abc").mkdir(parents=True)
    write(tmp_path / "set", layouts(), contents, n_images=N + 1)
    _fails(tmp_path, str(tmp_path), "no zarr.json", "beyondcls extract")
    _fails(tmp_path / "nowhere", "not a feature set")
    _fails(tmp_path / "z", "does not describe a feature set", "beyondcls")
    _fails(tmp_path / "one", "unfinished", "one-abc", "run it again")
    _fails(written, SPEC.key, "expected 00ff", key="00ff")
    _fails(tmp_path / "set", f"{N} rows for {N + 1} images")


def _ours(**values: Any) -> Callable[[Path], None]:
    return lambda path: edit(path, lambda meta: meta["attributes"]["beyondcls"].update(values))


def _spec(**values: Any) -> Callable[[Path], None]:
    return lambda path: edit(path, lambda meta: meta["attributes"]["beyondcls"]["spec"].update(values))


def test_classes_without_names(small: Path) -> None:
    _ours(classes=None)(small)
    assert FeatureStore.open(small).n_classes == 3


def _longer(by: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path / LAST, (path / LAST).stat().st_size + by)


LAST = "patch/block5/view0/c/2/0/0"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_spec(weights="2" * 32), (f"key {SPEC.key} does not belong", "extract it again")),
        (_spec(format_version=3, novelty=1), ("format version 3, expected 2; a later beyondcls wrote it: pip",)),
        (_spec(format_version=1), ("format version 1, expected 2; extract it again",)),
        (_spec(novelty=1), ("unknown ['novelty']",)),
        (_ours(classes=7), ("does not describe a feature set",)),
        (lambda path: edit(path, put_at("shape", 0, N - 1), LAST[:18]), ("patch/block5/view0/zarr.json", "was changed")),
        (lambda path: (path / "images/label/zarr.json").unlink(), ("images/label/zarr.json", "is missing")),
        (lambda path: (path / LAST).unlink(), (f"{LAST} is missing", "rows 128 to 149")),  # Zarr would give zeros
        (_longer(-1), (LAST, "has 1011 bytes, expected 1012")),
        (_longer(1), (LAST, "has 1013 bytes, expected 1012")),
    ],
)
def test_what_is_wrong_is_said(small: Path, damage: Callable[[Path], None], words: tuple[str, ...]) -> None:
    damage(small)
    _fails(small, *words)


@pytest.mark.parametrize("at", [0, 1000, -1])
def test_flipped_bit(small: Path, contents: Contents, at: int) -> None:
    flip(small / "patch/block5/view0/c/1/0/0", at)
    store = FeatureStore.open(small)
    expected = contents["patch/block5/view0"]
    assert same(store.tokens("patch").rows([0, 130]), expected[[0, 130]])  # the other shards are sound
    damaged = {0: "rows 64 to 95", 1000: "rows 96 to 127", -1: "its tail"}[at]
    with pytest.raises(StoreError, match=rf"patch/block5/view0/c/1/0/0 is damaged \({damaged}\)"):
        store.tokens("patch").rows([64, 127])
    careless = FeatureStore.open(small, verify="never").tokens("patch").all()
    assert same(careless, expected) == (at == -1)  # the last byte belongs to the index
    ((name, shard, problem),) = [result for result in verify(small) if result[2]]
    assert (name, shard) == ("patch/block5/view0", 1)
    assert f"is damaged ({damaged})" in str(problem)


def test_sound_rows_of_a_damaged_shard_are_read(small: Path, contents: Contents) -> None:
    """Reading a few rows costs no more than these, and fails only if these are damaged."""
    flip(small / "patch/block5/view0/c/1/0/0", 0)
    store = FeatureStore.open(small)
    assert same(store.tokens("patch").rows([96, 127]), contents["patch/block5/view0"][[96, 127]])
    with pytest.raises(StoreError, match="rows 64 to 95"):
        store.tokens("patch").rows([95])


def test_verify_goes_on_after_a_damaged_array(path: Path) -> None:
    """Its shard is -1; all others are looked at."""
    flip(path / "cls/block5/view0/zarr.json", 5)
    (path / "patch/block3/view0/c/1/0/0").unlink()
    problems = {(name, shard): problem for name, shard, problem in verify(path)}
    assert {key for key, problem in problems.items() if problem} == {("cls/block5/view0", -1), ("patch/block3/view0", 1)}
    assert ("cls/block5/view0", 0) not in problems
    assert "is missing" in str(problems["patch/block3/view0", 1])
    flip(path / "zarr.json", -9)
    with pytest.raises(StoreError, match=r"zarr\.json"):
        list(verify(path))


@pytest.mark.parametrize(("how", "n"), [("first", [3, 0]), ("always", [3, 3]), ("never", [0, 0])])
def test_a_digest_is_computed_when_promised(written: Path, digests: list[int], how: Verify, n: list[int]) -> None:
    """Of the pieces that hold the rows: the first chunk, the second, and the last."""
    reader = FeatureStore.open(written, verify=how).tokens("patch")
    for expected in n:
        digests.clear()
        reader.rows([0, 1, 33, 140])
        assert len(digests) == expected


def test_never_extracted(written: Path) -> None:
    store = FeatureStore.open(written)
    with pytest.raises(StoreError, match=r"no array 'patch/block4/view0'; it has: patch/block3/view0, patch/block5/view0"):
        store.tokens("patch", block=4)
    with pytest.raises(StoreError, match=r"no array 'cls/block5/view1'"):
        store.tokens("cls", view=1)
    with pytest.raises(StoreError, match="'allways'; did you mean 'always'"):
        FeatureStore.open(written, verify="allways")  # type: ignore[arg-type]


def test_encoder_without_cls(tmp_path: Path) -> None:
    arrays = [a for a in layouts() if not a.name.startswith("cls/")]
    write(tmp_path / "s", arrays, values(arrays))
    with pytest.raises(StoreError, match=r"has no \[cls\] tokens \(it has: attention, .*choose an aggregator"):
        FeatureStore.open(tmp_path / "s").tokens("cls")


def test_kind_that_is_not_in_this_copy(path: Path, contents: Contents) -> None:
    shutil.rmtree(path / "patch")
    store = FeatureStore.open(path)
    assert "patch" not in store.kinds
    assert same(store.tokens("cls").all(), contents["cls/block5/view0"])
    with pytest.raises(StoreError, match=f"patch is not in this copy.*dvc pull {path}/patch"):
        store.tokens("patch")


@pytest.mark.parametrize(
    "name", ["../patch", "/etc/patch", "patch/../../other", "patch//view0", "", ".", "a\\..\\b", "a\0b", "x" * 300]
)
def test_names_that_leave_the_folder(small: Path, name: str) -> None:
    def add(meta: dict[str, Any]) -> None:
        arrays = meta["attributes"]["beyondcls"]["arrays"]
        arrays[name] = arrays["images/label"]

    edit(small, add)
    _fails(small, "names arrays outside its folder", "do not use")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1e999", '{"attributes": []}', "[" * 100_000, "\ud800"])
@pytest.mark.parametrize("vouch", [False, True])
def test_no_metadata(small: Path, text: str, vouch: bool) -> None:
    data = text.encode(errors="surrogatepass")
    if vouch:  # of an array, with a digest that fits
        put(small, data, "images/label", vouch=True)
        _fails(small, "images/label/zarr.json")
    else:
        (small / "zarr.json").write_bytes(data)
        _fails(small, "does not describe a feature set")


SHARDING = ("codecs", 0, "configuration")


@pytest.mark.parametrize(
    "change",
    [
        put_at(*SHARDING, "index_location", "start"),
        put_at(*SHARDING, "codecs", 0, "configuration", "endian", "big"),
        put_at(*SHARDING, "codecs", [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 5}}]),
        put_at(*SHARDING, "index_codecs", [{"name": "bytes", "configuration": {"endian": "little"}}]),
        put_at("codecs", [{"name": "bytes", "configuration": {"endian": "little"}}]),
        put_at("chunk_key_encoding", "configuration", "separator", "."),
        put_at("chunk_grid", "configuration", "chunk_shape", 1, 1),
        put_at(*SHARDING, "chunk_shape", 0, 0),
        put_at("shape", 0, 10**15),
        put_at("shape", 0, N - 40),
        put_at("attributes", "beyondcls", "shards", []),
        put_at("attributes", "beyondcls", "shards", 0, "rows", [0, 32]),
        put_at("attributes", "beyondcls", "shards", 0, {"rows": [0, SHARD], "nbytes": 2000}),
    ],
)
def test_an_array_that_lies_otherwise(small: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Even when the group vouches for it: this reader would read the wrong bytes."""
    edit(small, change, "patch/block5/view0", vouch=True)
    _fails(small, "patch/block5/view0/zarr.json", "extract")


@pytest.mark.parametrize("dtype", ["object", "complex64"])
def test_an_array_of_no_plain_numbers(small: Path, dtype: str) -> None:
    """Of eight bytes too, like the labels; as objects they would be addresses."""
    edit(small, put_at("data_type", dtype), "images/label", vouch=True)
    _fails(small, "images/label/zarr.json", "plain numbers")


def test_short_rows_with_others_between_them_are_read_at_once(
    written: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, rows = FeatureStore.open(written).array("cls/block5/view0"), np.array([0, 1, 3, 9, 60, 60])
    assert list(array.runs(rows)) == [(0, 5), (5, 6)]
    assert same(array.stored(rows), contents["cls/block5/view0"][rows])
    monkeypatch.setattr("store.format.array.ALIGNMENT", 1)  # now they are long
    assert list(array.runs(rows)) == [(0, 2), (2, 3), (3, 4), (4, 6)]


def test_several_long_rows_are_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [ArrayLayout("patch/block0/view0", (64, 32, 1024), "float32", ("image", "patch", "channel"), 32)]
    contents = values(arrays)
    write(tmp_path / "s", arrays, contents)
    array, rows = FeatureStore.open(tmp_path / "s").array("patch/block0/view0"), np.arange(0, 64, 2)[::-1]
    together, read = threading.Barrier(4), array.read_run  # which fewer threads than that never pass
    monkeypatch.setattr(array, "read_run", lambda *of_run: (together.wait(20), read(*of_run)))
    assert same(array.stored(rows), contents["patch/block0/view0"][rows])
    flip(tmp_path / "s/patch/block0/view0/c/0/0/0", 20 << 17)
    again = FeatureStore.open(tmp_path / "s").array("patch/block0/view0")
    with pytest.raises(StoreError, match="rows 20 to 20"):
        again.stored(rows)
