"""Receipts: the same bytes for the same set anywhere, and an error for every set that is not the very one."""

import json
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest

from store import FeatureStore, StoreError
from store.format.array import ArrayReader
from store.moving.receipt import Receipt
from tests.folders import files
from tests.store.conftest import SPEC, N, layouts, put_at, values, write


@pytest.fixture
def receipt(written: Path) -> Receipt:
    return Receipt.from_store(FeatureStore.open(written))


def remote_copy(of: Path) -> tuple[str, Any, str]:
    """A copy in memory: its address, file system and root."""
    url = f"memory://{uuid.uuid4().hex}/one"
    fs, root = fsspec.core.url_to_fs(url)
    fs.put(str(of), root, recursive=True)
    return url, fs, root


def test_what_it_says(receipt: Receipt, written: Path) -> None:
    """All of its fields are compared with the set in test_document.py."""
    assert (receipt.key, receipt.encoder, receipt.n_images) == (SPEC.key, "vit", N)
    assert receipt.nbytes == sum(len(content) for name, content in files(written).items() if "/c/" in name)


def test_the_same_set_has_the_same_receipt_anywhere(receipt: Receipt, written: Path, tmp_path: Path) -> None:
    url, _, _ = remote_copy(written)
    moved = shutil.copytree(written, tmp_path / "elsewhere" / "other-name")
    for where in (url, moved):
        assert Receipt.from_store(FeatureStore.open(where)).to_json() == receipt.to_json()
    assert b"/work" not in receipt.to_json()
    assert str(written).encode() not in receipt.to_json()


def test_written_and_read(receipt: Receipt, tmp_path: Path) -> None:
    file = tmp_path / "receipts" / "one.json"
    receipt.write(file)
    assert Receipt.read(file) == receipt
    assert file.read_bytes() == receipt.to_json()
    assert [f.name for f in file.parent.iterdir()] == ["one.json"]


def test_no_shard_is_read(receipt: Receipt, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a shard was read")

    for method in ("fetch", "fetch_into", "_open_shard", "tail"):
        monkeypatch.setattr(ArrayReader, method, refuse)
    store = FeatureStore.open(written)
    assert Receipt.from_store(store) == receipt
    receipt.check(store, whole=True)


@pytest.mark.parametrize("remote", [False, True])
class TestCheck:
    @pytest.fixture
    def copy(self, path: Path, remote: bool) -> tuple[str, Any, str]:
        if remote:
            return remote_copy(path)
        return str(path), fsspec.filesystem("file"), str(path)

    def test_the_very_one(self, copy: Any, receipt: Receipt) -> None:
        receipt.check(FeatureStore.open(copy[0]), whole=True)

    def test_kinds_that_are_not_in_a_copy(self, copy: Any, receipt: Receipt) -> None:
        url, fs, root = copy
        fs.rm(f"{root}/patch", recursive=True)
        store = FeatureStore.open(url)
        receipt.check(store)
        with pytest.raises(StoreError, match=r"patch/block3/view0 is missing \(2 of 16 arrays are\)"):
            receipt.check(store, whole=True)
        with pytest.raises(StoreError, match="the whole feature set is needed here"):
            Receipt.from_store(store)

    def test_a_shard_that_was_deleted_or_cut_after_opening_was_listed(self, copy: Any, receipt: Receipt) -> None:
        url, fs, root = copy
        name = "patch/block5/view0/c/1/0/0"
        fs.pipe_file(f"{root}/{name}", fs.cat_file(f"{root}/{name}")[:-1])
        store = FeatureStore.describe(url)
        store.add("patch/block5/view0")
        with pytest.raises(StoreError, match=rf"{name} has [\d,]+ bytes, its receipt says [\d,]+; extract it again, fetch it"):
            receipt.check(store)
        fs.rm(f"{root}/{name}")
        store = FeatureStore.describe(url)
        store.add("patch/block5/view0")
        with pytest.raises(StoreError, match=f"{name} is missing; extract it again, fetch it with `beyondcls store pull`"):
            receipt.check(store)


def test_another_set(receipt: Receipt, computed_elsewhere: Path, tmp_path: Path) -> None:
    """With another key, or the same one but other bytes."""
    write(tmp_path / "other", layouts(), values(layouts()), weights="2" * 32)
    with pytest.raises(StoreError, match=rf"other has key \w+, its receipt {SPEC.key}"):
        receipt.check(FeatureStore.open(tmp_path / "other"))
    with pytest.raises(StoreError, match=r"a different zarr\.json: the features were computed again"):
        receipt.check(FeatureStore.open(computed_elsewhere))


def test_a_receipt_that_does_not_fit_its_own_digest(receipt: Receipt, written: Path) -> None:
    """As somebody may have edited it."""
    store, name = FeatureStore.open(written), "cls/block5/view0"
    array = receipt.arrays[name]

    def edited(**changes: Any) -> Receipt:
        return replace(receipt, arrays={**receipt.arrays, name: replace(array, **changes)})

    without = replace(receipt, arrays={n: a for n, a in receipt.arrays.items() if n != name})
    shards = (replace(array.shards[0], xxh3_128="0" * 32), *array.shards[1:])
    for wrong, message in (
        (without, "cls/block5/view0 is not in the receipt"),
        (edited(shape=(N, 6)), r"is \[150, 5\] float16, its receipt says \[150, 6\] float16"),
        (edited(dtype="int8"), r"is \[150, 5\] float16, its receipt says \[150, 5\] int8"),
        (edited(shards=array.shards[1:]), "has 3 shards, its receipt 2"),
        (edited(shards=shards), "cls/block5/view0/c/0/0 is not the shard of the receipt: another digest or size"),
    ):
        with pytest.raises(StoreError, match=message):
            wrong.check(store)


ONE = "arrays.cls/block5/view0"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format_version", True, "format_version is 'True', expected int"),
        ("key", "../../etc", "key is '../../etc', expected 32 hexadecimal digits"),
        ("key", 5, "key is '5', expected str"),
        ("digest", "F" * 32, "expected 32 hexadecimal digits"),
        ("encoder", None, "encoder is 'None', expected str"),
        ("n_images", -1, "n_images is '-1', expected int"),
        ("n_images", True, "n_images is 'True', expected int"),
        ("n_images", 1.5, r"n_images is '1\.5', expected int"),
        ("arrays", [], r"arrays is '\[\]', expected dict"),
        ("arrays", {"../x": {}}, r"'\.\./x' is not the name of an array"),
        ("arrays", {"/etc/x": {}}, "'/etc/x' is not the name of an array"),
        ("more", 1, r"missing \[\], unknown \['more'\]"),
        (ONE, [], "list where an object is expected"),
        (f"{ONE}.more", 1, r"unknown \['more'\]"),
        (f"{ONE}.shape", "12", "shape is '12', expected list"),
        (f"{ONE}.shape", [1, "2"], "shape is '2', expected int"),
        (f"{ONE}.dtype", 1, "dtype is '1', expected str"),
        (f"{ONE}.nbytes", 1, r"nbytes of cls/block5/view0 is 1, its shards have \d+"),
        (f"{ONE}.shards", {}, r"shards is '{}', expected list"),
        (f"{ONE}.shards.0", 1, "int where an object is expected"),
        (f"{ONE}.shards.0.nbytes", "9", "nbytes is '9', expected int"),
        (f"{ONE}.shards.0.xxh3_128", "0", "xxh3_128 is '0', expected 32 hexadecimal digits"),
    ],
)
def test_files_that_are_no_receipts(path: str, value: Any, message: str, receipt: Receipt, tmp_path: Path) -> None:
    file, content = tmp_path / "one.json", json.loads(receipt.to_json())
    put_at(*(int(step) if step.isdigit() else step for step in path.split(".")), value)(content)
    file.write_text(json.dumps(content))
    with pytest.raises(StoreError, match=rf"^{file} is not a receipt of a feature set \(.*{message}.*get the receipt again"):
        Receipt.read(file)


@pytest.mark.parametrize(("version", "remedy"), [(1, "extract again"), (3, "pip install --upgrade beyondcls")])
def test_receipts_of_other_versions(version: int, remedy: str, receipt: Receipt, tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text(json.dumps({**json.loads(receipt.to_json()), "format_version": version}))
    with pytest.raises(StoreError, match=rf"{file} has format version {version}, expected 2; .*{remedy}"):
        Receipt.read(file)


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", b"[" * 100_000, b"null", b"[]", b'"text"', b"{}"])
def test_files_that_are_anything(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "one.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"there is no receipt .*one\.json.*dvc pull|one\.json is no.*get the receipt again"):
        Receipt.read(tmp_path / "one.json")


def test_every_field_missing(receipt: Receipt, tmp_path: Path) -> None:
    content = json.loads(receipt.to_json())
    for name in content:
        (tmp_path / "one.json").write_text(json.dumps({n: v for n, v in content.items() if n != name}))
        with pytest.raises(StoreError, match=name):
            Receipt.read(tmp_path / "one.json")
