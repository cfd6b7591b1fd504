"""Local folders and object stores give the same bytes and the same errors."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store import FeatureStore, StoreError, verify
from store.places import LocalFolder, place_at
from store.places.local import LocalShard
from store.places.object_store import ObjectStore
from store.places.place import ALIGNMENT, aligned_memory
from tests.folders import files
from tests.store.service import Service
from tests.store.test_disk import refuse


@pytest.fixture
def remote(written: Path) -> Iterator[str]:
    """The same set, as a service gives it."""
    yield f"service://{written}"
    Service.reset()


def test_a_url_of_this_machine_of_another_and_of_nothing(written: Path, remote: str) -> None:
    assert FeatureStore.open(f"file://{written}").path == written
    with pytest.raises(StoreError, match="is not a local folder; copy it to one first"):
        _ = FeatureStore.open(remote).path
    with pytest.raises(StoreError, match=r"memory://nowhere is not a feature set: it has no zarr\.json"):
        FeatureStore.open("memory://nowhere")


@pytest.mark.parametrize(
    ("call", "message"),
    [("find", "cannot be listed: .*denied; check the address"), ("cat_file", r"zarr\.json cannot be read: .*denied; check")],
)
def test_a_service_that_fails(remote: str, call: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, call, lambda *_, **__: refuse(errno.EACCES))
    with pytest.raises(StoreError, match=f"{remote}.*{message}"):
        FeatureStore.open(remote)


def test_names_of_files(remote: str, written: Path) -> None:
    contents = files(written)
    for place in (place_at(remote), place_at(written)):
        assert isinstance(place, ObjectStore | LocalFolder)
        for name in contents:
            assert place.size(name) == len(contents[name])
            assert place.content(name) == contents[name]
        for name in ("nothing", "images/labe", "images"):
            assert place.size(name) is place.content(name) is None
        assert [place.has_folder(n) for n in ("images", "images/label", "image", "nothing")] == [True, True, False, False]
        with pytest.raises(StoreError, match="nothing cannot be opened"):
            place.open("nothing")


@pytest.mark.parametrize("direct", [False, True])
def test_any_range_of_a_shard(tmp_path: Path, direct: bool) -> None:
    """Also past the end, and where the page cache is bypassed in whole blocks."""
    data = np.random.default_rng(0).bytes(3 * ALIGNMENT + 77)
    (tmp_path / "shard").write_bytes(data)
    shard, generator = LocalFolder(tmp_path).open("shard", direct), np.random.default_rng(1)
    scratch = aligned_memory(len(data) + 3 * ALIGNMENT)
    for _ in range(100):
        start, stop = np.sort(generator.integers(0, len(data) + 50, 2)).tolist()
        assert bytes(shard.read(start, stop - start, scratch)) == data[start:stop]


@pytest.mark.parametrize(
    ("is_open", "change", "message"),
    [
        (False, lambda file, _: file.unlink(), r"cannot be opened \(No such file or directory\)"),
        (True, lambda file, _: os.truncate(file, 100), "ended while it was read"),
        (
            True,
            lambda _, patch: patch.setattr(os, "preadv", lambda *_: refuse(errno.EIO)),
            r"cannot be read \(Input.*; pull or",
        ),
    ],
    ids=["gone", "shorter", "a disk that fails"],
)
def test_a_shard_that_cannot_be_read_any_more(
    is_open: bool, change: Any, message: str, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = FeatureStore.open(small).array("images/label")
    array.rows([0] if is_open else [])
    change(small / "images/label/c/0", monkeypatch)
    with pytest.raises(StoreError, match=f"images/label/c/0 {message}"):
        array.rows([40])


def test_a_shard_that_cannot_be_opened_for_now_is_not_damaged(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `verify` would call it damaged, and `repair` replace it."""
    code = errno.EMFILE
    store, real = FeatureStore.open(small), os.open
    monkeypatch.setattr(os, "open", lambda path, *given: refuse(code) if "label" in os.fspath(path) else real(path, *given))
    for read in (lambda: store.labels, lambda: list(verify(small))):
        with pytest.raises(OSError, match=os.strerror(code)):
            read()


def test_many_open_shards(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those used longest ago are closed."""
    monkeypatch.setattr("store.format.array.OPEN_SHARDS", 2)
    array = FeatureStore.open(small).array("images/label")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        array.all()
        assert list(array._open) == [(1, False), (2, False)]
    assert len(os.listdir("/proc/self/fd")) == before + 2
    array.rows([70])
    array.rows([0])
    assert list(array._open) == [(1, False), (0, False)]


@pytest.mark.parametrize("is_cached", [True, False])
def test_the_page_cache_is_asked_once_for_each_shard(is_cached: bool, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not whenever a shard is opened again, which a shuffled epoch of many does for nearly every read."""
    monkeypatch.setattr("store.format.array.OPEN_SHARDS", 1)
    asked: list[int] = []
    monkeypatch.setattr("store.places.local._in_page_cache", lambda descriptor: asked.append(descriptor) is None and is_cached)
    array = FeatureStore.open(small).array("images/label")
    for shard in (0, 1, 2, 0, 2, 1):
        file = array._open_shard(shard, None)
        assert isinstance(file, LocalShard)
        assert file.direct is not is_cached
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("pipe:touch ran", "no command is run"),
        ("HTTPS://h/one", "web servers neither list"),
        *((address, "named by their paths") for address in ("local:///etc", "reference://x", "data:text/plain,x://")),
        *((chain, "chains") for chain in ("simplecache::file:///etc", "zip://a::memory://b.zip")),
        ("s3://key:secret@bucket/x", r"s3://\*\*\*@bucket/x is no place .*: a bucket has no user or password"),
        ("gopher://h/x", "cannot be opened: Protocol not known: gopher"),
    ],
)
def test_what_is_no_place(address: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (FeatureStore.open, place_at):
        with pytest.raises(StoreError, match=why):
            use(address)
    assert list(tmp_path.iterdir()) == []
