"""Receipts: the same bytes for the same set anywhere, and an error for every set that is not the very one."""

import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest

from store import FeatureStore, StoreError
from store.format.array import ArrayReader
from store.moving.receipt import Receipt
from store.moving.transfer import upload
from tests.folders import files
from tests.store.conftest import SPEC, N, layouts, values, write


@pytest.fixture
def receipt(written: Path) -> Receipt:
    return Receipt.from_store(FeatureStore.open(written))


def test_the_same_set_has_the_same_receipt_anywhere(receipt: Receipt, written: Path, tmp_path: Path) -> None:
    """All of its fields are compared with the set in test_document.py."""
    assert receipt.nbytes == sum(len(content) for name, content in files(written).items() if "/c/" in name)
    upload(FeatureStore.open(written), address := f"memory://{uuid.uuid4().hex}/one")
    for where in (address, shutil.copytree(written, tmp_path / "elsewhere" / "other-name")):
        Receipt.from_store(FeatureStore.open(where)).write(file := tmp_path / "receipts" / "one.json")
        assert Receipt.read(file) == receipt
        assert file.read_bytes() == receipt.to_json()
        assert [f.name for f in file.parent.iterdir()] == ["one.json"]
    assert not {b"/work", str(written).encode()} & set(receipt.to_json().split(b'"'))


def test_no_shard_is_read(receipt: Receipt, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("fetch", "fetch_into", "_open_shard", "tail"):
        monkeypatch.setattr(ArrayReader, method, None)
    store = FeatureStore.open(written)
    assert Receipt.from_store(store) == receipt
    receipt.check(store, whole=True)


@pytest.mark.parametrize("remote", [False, True])
def test_shards_and_kinds_that_a_copy_lacks(remote: bool, path: Path, receipt: Receipt) -> None:
    address = f"memory://{uuid.uuid4().hex}/one" if remote else str(path)
    upload(FeatureStore.open(path), address)
    fs, root = fsspec.core.url_to_fs(address)
    receipt.check(FeatureStore.open(address), whole=True)
    name = "patch/block5/view0/c/1/0/0"
    for change, message in (
        (lambda: fs.pipe_file(f"{root}/{name}", b"x"), rf"{name} has 1 bytes, its receipt says [\d,]+; extract it again"),
        (lambda: fs.rm(f"{root}/{name}"), f"{name} is missing; extract it again"),
    ):
        change()
        store = FeatureStore.describe(address)
        store.add("patch/block5/view0")
        with pytest.raises(StoreError, match=message):
            receipt.check(store)
    fs.rm(f"{root}/patch", recursive=True)
    store = FeatureStore.open(address)
    receipt.check(store)
    for use in (lambda: receipt.check(store, whole=True), lambda: Receipt.from_store(store)):
        with pytest.raises(StoreError, match=r"patch/block3/view0 is missing \(2 of 16 arrays are\).*whole feature set"):
            use()


def test_another_set(receipt: Receipt, computed_elsewhere: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", layouts(), values(layouts()), weights="2" * 32)
    with pytest.raises(StoreError, match=rf"other has key \w+, its receipt {SPEC.key}"):
        receipt.check(FeatureStore.open(tmp_path / "other"))
    with pytest.raises(StoreError, match=r"a different zarr\.json: the features were computed again"):
        receipt.check(FeatureStore.open(computed_elsewhere))


def test_a_receipt_that_does_not_fit_its_own_digest(receipt: Receipt, written: Path) -> None:
    store, name = FeatureStore.open(written), "cls/block5/view0"
    array = receipt.arrays[name]

    def edited(**changes: Any) -> Receipt:
        return replace(receipt, arrays={**receipt.arrays, name: replace(array, **changes)})

    without = replace(receipt, arrays={n: a for n, a in receipt.arrays.items() if n != name})
    shards = (replace(array.shards[0], xxh3_128="0" * 32), *array.shards[1:])
    for wrong, message in (
        (without, "cls/block5/view0 is not in the receipt"),
        (edited(shape=(N, 6)), r"is \[150, 5\] float16 in 3 shards, its receipt says \[150, 6\] float16"),
        (edited(dtype="int8"), r"is \[150, 5\] float16 in 3 shards, its receipt says \[150, 5\] int8"),
        (edited(shards=array.shards[1:]), "in 3 shards, its receipt says .* in 2"),
        (edited(shards=shards), "cls/block5/view0/c/0/0 is not the shard of the receipt: another digest or size"),
    ):
        with pytest.raises(StoreError, match=message):
            wrong.check(store)


WRONG = (None, True, -1, 1.5, "../../etc", "F" * 32, "0" * 33, [], ["2"], {}, {"../x": {}}, {"/etc/x": {}})
RIGHT = {"encoder": WRONG[4:7], "dtype": WRONG[4:7], "shape": ([],), "arrays": ({},)}  # some of these, in some fields


def variants(value: Any, name: str = "") -> Iterator[Any]:
    """A document with another value in each place, without each field, and with one more."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if name != "arrays":
                yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: other} for other in variants(inner, key))
        yield {**value, "more": 1}
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in variants(inner, name))
    yield from (other for other in WRONG if other not in RIGHT.get(name, ()))


def test_files_that_are_no_receipts(receipt: Receipt, tmp_path: Path) -> None:
    file, content = tmp_path / "one.json", json.loads(receipt.to_json())
    content["arrays"] = {name: content["arrays"][name] for name in ("cls/block5/view0", "norm/bias")}
    for document in variants(content):
        file.write_text(json.dumps(document))
        with pytest.raises(StoreError, match=rf"^{file} (is no receipt of a feature set \(|has format version -1).*again"):
            Receipt.read(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format_version": 1}', "has format version 1, expected 2; .*extract again"),
        ('{"format_version": 3}', "has format version 3, expected 2; .*pip install --upgrade beyondcls"),
        *((content, r"one\.json is no.*get it again") for content in ("", "\ud800", "[" * 100_000)),
        (None, r"there is no receipt .*one\.json.*dvc pull"),
    ],
)
def test_files_that_are_anything(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "one.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(StoreError, match=message):
        Receipt.read(tmp_path / "one.json")
