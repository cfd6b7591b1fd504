"""Local folders and object stores give the same bytes and the same errors."""

import errno
import os
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest

from store import FeatureStore, Loader, StoreError, verify
from store.places import LocalFolder, place_at
from store.places.aligned import ALIGNMENT, aligned_memory
from store.places.object_store import ObjectStore
from tests.folders import files
from tests.store.conftest import SPEC, N, same


@pytest.fixture
def remote(written: Path) -> Iterator[str]:
    """A copy in memory."""
    url = f"memory://{uuid.uuid4().hex}/features/one"
    fs, root = fsspec.core.url_to_fs(url)
    fs.put(str(written), root, recursive=True)
    yield url
    fs.rm(root, recursive=True)


def _fs(url: str) -> tuple[Any, str]:
    return fsspec.core.url_to_fs(url)


def test_a_url_of_this_machine(written: Path) -> None:
    assert FeatureStore.open(f"file://{written}").path == written


def test_the_same_set(remote: str, written: Path, contents: dict[str, np.ndarray]) -> None:
    store, local = FeatureStore.open(remote, key=SPEC.key), FeatureStore.open(written)
    assert store.arrays.keys() == local.arrays.keys()
    assert store.where == remote
    assert store.ids == local.ids
    rows = np.random.default_rng(0).permutation(N)
    for name, got in store.rows(rows).items():
        assert same(got, contents[name][rows])
    assert all(problem is None for _, _, problem in verify(remote))


def test_streamed(remote: str, contents: dict[str, np.ndarray]) -> None:
    store = FeatureStore.open(remote)
    loader = Loader({"x": store.tokens("patch")}, store.labels, placement="stream", dtype=None, batch_size=40)
    assert loader.threads == 16
    for batch in loader.epoch():
        assert same(batch["x"].numpy(), contents["patch/block5/view0"][batch["row"].numpy()])


def test_no_folder_on_this_machine(remote: str) -> None:
    with pytest.raises(StoreError, match="is no local folder; copy it here first"):
        _ = FeatureStore.open(remote).path


def test_nothing_there() -> None:
    with pytest.raises(StoreError, match=r"memory://nowhere is not a feature set: it has no zarr\.json"):
        FeatureStore.open("memory://nowhere")


def test_an_unknown_protocol() -> None:
    with pytest.raises(StoreError, match="nonsense://bucket/one cannot be opened: Protocol not known"):
        FeatureStore.open("nonsense://bucket/one")


class Broken(fsspec.AbstractFileSystem):
    """A service that fails, at once or once it was listed."""

    protocol, cachable = "broken", False
    listed: dict[str, dict[str, Any]] | None = None

    def find(self, path: str, **_: Any) -> dict[str, dict[str, Any]]:
        if self.listed is None:
            raise PermissionError("403 Forbidden")
        return self.listed

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        raise ConnectionError("reset by peer")


def test_a_service_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("broken", Broken, clobber=True)
    with pytest.raises(StoreError, match=r"cannot be listed: 403 Forbidden; check the address, the network and your cred"):
        FeatureStore.open("broken://one")
    monkeypatch.setattr(Broken, "listed", {"one/zarr.json": {"size": 10}})
    with pytest.raises(StoreError, match=r"broken://one/zarr\.json cannot be read: reset by peer"):
        FeatureStore.open("broken://one")


def test_a_folder_is_listed_once(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request a file would take minutes."""
    fs, _ = _fs(remote)
    finds: list[str] = []
    find = type(fs).find

    def counted(self: Any, path: str, **options: Any) -> Any:
        finds.append(path)
        return find(self, path, **options)

    monkeypatch.setattr(type(fs), "find", counted)
    FeatureStore.open(remote)
    assert len(finds) == 1


def test_names_of_files(remote: str, written: Path) -> None:
    there = files(written)
    for place in (place_at(remote), place_at(written)):
        assert isinstance(place, ObjectStore | LocalFolder)
        for name in there:
            assert place.size(name) == len(there[name])
            assert place.content(name) == there[name]
        for name in ("nothing", "images/labe", "images"):
            assert place.size(name) is place.content(name) is None
        assert [place.has_folder(n) for n in ("images", "images/label", "image", "nothing")] == [True, True, False, False]
        with pytest.raises(StoreError, match="nothing cannot be opened"):
            place.open("nothing")


@pytest.mark.parametrize("direct", [False, True, None])
def test_any_range_of_a_shard(tmp_path: Path, direct: bool | None) -> None:
    """Also past the end, and where the page cache is bypassed in whole blocks."""
    data = np.random.default_rng(0).bytes(3 * ALIGNMENT + 77)
    (tmp_path / "shard").write_bytes(data)
    shard, generator = LocalFolder(tmp_path).open("shard", direct), np.random.default_rng(1)
    scratch = aligned_memory(len(data) + 3 * ALIGNMENT)
    for _ in range(100):
        start, stop = np.sort(generator.integers(0, len(data) + 50, 2)).tolist()
        assert bytes(shard.read(start, stop - start, scratch)) == data[start:stop]


def test_a_disk_that_fails(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    store = FeatureStore.open(written)
    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(StoreError, match=r"images/label/c/0 cannot be read \(Input/output error\); pull or extract it again"):
        _ = store.labels


def test_a_shard_that_gets_shorter_while_it_is_open(small: Path) -> None:
    store = FeatureStore.open(small)
    store.array("images/label").rows([0])
    os.truncate(small / "images/label/c/0", 100)
    with pytest.raises(StoreError, match="images/label/c/0 ended while it was read"):
        store.array("images/label").rows([40])


def test_a_shard_that_goes_after_opening(small: Path) -> None:
    store = FeatureStore.open(small)
    (small / "images/label/c/0").unlink()
    with pytest.raises(StoreError, match=r"images/label/c/0 cannot be opened \(No such file or directory\)"):
        _ = store.labels


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


def test_readers_can_be_sent_elsewhere(written: Path, remote: str) -> None:
    for where in (written, remote):
        array = FeatureStore.open(where).tokens("patch")
        expected = array.all()
        again = pickle.loads(pickle.dumps(array))
        assert again._seen == {}  # it checks for itself
        assert same(again.all(), expected)
