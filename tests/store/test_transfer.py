"""Copies of feature sets: the same bytes after any interruption, and no damaged or foreign byte."""

import os
import shutil
import signal
import time
import uuid
from collections import namedtuple
from collections.abc import Iterable
from pathlib import Path
from threading import Event
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest

from store import FeatureStore, StoreError
from store.format.unfinished import is_stub, write_stub
from store.moving import transfer
from store.moving.receipt import Receipt
from store.moving.transfer import PULLED, pull, upload
from store.places import LocalFolder
from store.places.object_store import ObjectStore
from store.places.place import map_parallel
from store.writing.claims import alone
from tests.folders import files
from tests.forked import kill_after, status
from tests.store.conftest import flip, layouts, values, write


@pytest.fixture(params=["memory", "folder"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}/sets/one" if request.param == "memory" else str(tmp_path / "shared" / "one")


def at(address: str) -> tuple[Any, str]:
    return fsspec.core.url_to_fs(address)


def content(address: str) -> dict[str, bytes]:
    """All files that are there."""
    fs, root = at(address)
    return {name[len(root.rstrip("/")) + 1 :]: fs.cat_file(name) for name in fs.find(root)}


def written_names(monkeypatch: pytest.MonkeyPatch, at_most: int = 1000) -> list[str]:
    """Names of the files that are written to a shared place, in order; more than so many fail."""
    names: list[str] = []
    for kind in (LocalFolder, ObjectStore):

        def put(self: Any, name: str, parts: Iterable[bytes], nbytes: int, real: Any = kind.put) -> None:
            if len(names) >= at_most:
                raise StoreError("the network is gone")
            real(self, name, parts, nbytes)
            names.append(name)

        monkeypatch.setattr(kind, "put", put)
    return names


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return written_names(monkeypatch)


def stop_after(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the upload of any shard after the first n fail."""
    written_names(monkeypatch, n)
    monkeypatch.setattr("store.places.object_store.AT_ONCE", 1)


def upload_until_killed(path: Path, address: str) -> None:
    kill_after(9, (LocalFolder, "put"))
    upload(FeatureStore.open(path), address)


def pull_until_killed(path: Path, out: Path, n: int) -> None:
    kill_after(n, (transfer, "write_file"), (os, "rename"), (shutil, "rmtree"))
    pull(str(path), out)


class TestUpload:
    def test_the_same_bytes(self, address: str, written: Path, sent: list[str]) -> None:
        reported: list[int] = []
        upload(FeatureStore.open(written), address, reported.append)
        assert content(address) == files(written)
        assert sent[-1] == "zarr.json"
        assert max(i for i, name in enumerate(sent) if "/c/" in name) < min(
            i for i, name in enumerate(sent) if name.endswith("zarr.json")
        )
        receipt = Receipt.from_store(FeatureStore.open(written))
        assert sum(reported) == receipt.nbytes
        receipt.check(FeatureStore.open(address), whole=True)
        sent.clear()
        upload(FeatureStore.open(written), address)
        assert sent == [], "nothing a second time"

    @pytest.mark.parametrize("n", [0, 1, 7])
    def test_interrupted(self, n: int, address: str, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = FeatureStore.open(written)
        with monkeypatch.context() as patch:
            stop_after(n, patch)
            with pytest.raises(StoreError, match="the network is gone"):
                upload(store, address)
        assert len(content(address)) == n
        with pytest.raises(StoreError, match=r"is not a feature set: it has no zarr\.json"):
            FeatureStore.open(address)
        before = set(content(address))
        with monkeypatch.context() as patch:
            again: list[str] = []
            real = transfer.pieces
            patch.setattr("store.moving.transfer.pieces", lambda a, i: again.append(a.layout.file(i)) or real(a, i))  # type: ignore[func-returns-value]
            upload(store, address)
        assert not before & set(again), "what is there is not sent again"
        assert content(address) == files(written)

    def test_what_another_upload_has_left_does_not_count(
        self, address: str, written: Path, computed_elsewhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            stop_after(20, patch)
            with pytest.raises(StoreError):
                upload(FeatureStore.open(computed_elsewhere), address)
        left, ours = content(address), files(written)
        assert len(left) == 20
        assert sum(left[name] != ours[name] for name in left) > 10
        upload(FeatureStore.open(written), address)
        assert content(address) == ours

    def test_a_finished_set_of_other_bytes_is_left_alone(self, address: str, written: Path, computed_elsewhere: Path) -> None:
        upload(FeatureStore.open(computed_elsewhere), address)
        with pytest.raises(StoreError, match="holds another feature set, or one that was changed; remove it, or choose"):
            upload(FeatureStore.open(written), address)
        assert content(address) == files(computed_elsewhere)

    def test_files_of_none(self, address: str, written: Path) -> None:
        fs, root = at(address)
        fs.makedirs(f"{root}/patch/block5/view0/c/17/0", exist_ok=True)
        fs.pipe_file(f"{root}/patch/block5/view0/c/17/0/0", b"x")
        with pytest.raises(StoreError, match="holds 1 files that do not belong to this set, first patch/block5/view0/c/17/0/0"):
            upload(FeatureStore.open(written), address)

    def test_damaged_and_deleted_shards_of_a_finished_copy(self, address: str, written: Path, sent: list[str]) -> None:
        store = FeatureStore.open(written)
        upload(store, address)
        fs, root = at(address)
        gone, cut = "patch/block5/view0/c/1/0/0", "cls/block5/view0/c/0/0"
        fs.rm(f"{root}/{gone}")
        fs.pipe_file(f"{root}/{cut}", b"x")
        sent.clear()
        upload(store, address)
        assert sorted(sent) == [cut, gone]
        assert content(address) == files(written)

    @pytest.mark.parametrize(("place", "what"), [(3, "rows 0 to 31"), (-10, "its tail")])
    def test_a_damaged_local_shard_is_not_sent(self, place: int, what: str, address: str, path: Path) -> None:
        flip(path / "images/label/c/0", place)
        with pytest.raises(StoreError, match=rf"images/label/c/0 is damaged \({what}\)"):
            upload(FeatureStore.open(path), address)
        assert not {"images/label/c/0", "zarr.json"} & set(content(address))

    def test_a_copy_that_lacks_kinds(self, address: str, path: Path) -> None:
        shutil.rmtree(path / "patch")
        with pytest.raises(StoreError, match=r"patch/block3/view0 is missing.*the whole feature set is needed here"):
            upload(FeatureStore.open(path), address)
        assert content(address) == {}

    def test_a_service_that_loses_what_it_took(self, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        address = f"memory://{uuid.uuid4().hex}/one"
        real = ObjectStore.put

        def put(self: Any, name: str, parts: Iterable[bytes], nbytes: int) -> None:
            if name != "norm/bias/c/0":
                real(self, name, parts, nbytes)

        monkeypatch.setattr(ObjectStore, "put", put)
        with pytest.raises(StoreError, match="norm/bias/c/0 has no bytes after it was sent, expected"):
            upload(FeatureStore.open(written), address)
        assert "zarr.json" not in content(address)

    def test_a_place_where_nobody_may_write(self, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match=r"cannot be written.*it goes on where it was"):
            upload(FeatureStore.open(written), str(tmp_path / "file" / "one"))

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError("403 Forbidden")

        monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.pipe_file", refuse)
        with pytest.raises(StoreError, match="cannot be written: 403 Forbidden; check the network, your credentials"):
            upload(FeatureStore.open(written), "memory://nobody/one")

    def test_killed(self, written: Path, tmp_path: Path) -> None:
        assert status(upload_until_killed, written, str(tmp_path / "one")) == -signal.SIGKILL
        left = content(str(tmp_path / "one"))
        assert 0 < len(left) < len(files(written))
        upload(FeatureStore.open(written), str(tmp_path / "one"))
        assert files(tmp_path / "one") == files(written)


@pytest.fixture
def shared(address: str, written: Path) -> str:
    upload(FeatureStore.open(written), address)
    return address


class TestPull:
    def test_the_same_bytes(self, shared: str, written: Path, tmp_path: Path) -> None:
        reported: list[int] = []
        store = pull(shared, tmp_path / "features" / "one", progress=reported.append)
        assert files(tmp_path / "features" / "one") == files(written)
        assert sum(reported) == Receipt.from_store(store).nbytes
        assert [p.name for p in (tmp_path / "features").iterdir()] == ["one"], "nothing is left behind"

    def test_some_kinds_then_others(self, shared: str, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        out = tmp_path / "features" / "one"
        store = pull(shared, out, ["cls", "images"])
        assert store.kinds == ["cls", "images"]
        assert not (out / "patch").exists()
        fetched: list[str] = []
        real = transfer.pieces
        monkeypatch.setattr("store.moving.transfer.pieces", lambda a, i: fetched.append(a.name) or real(a, i))  # type: ignore[func-returns-value]
        reported: list[int] = []
        pull(shared, out, ["cls", "patch"], reported.append)
        assert set(fetched) == {"patch/block3/view0", "patch/block5/view0"}
        assert sum(reported) == sum(
            shard["nbytes"] for n, a in store.arrays.items() if n[:3] == "cls" for shard in a.shards
        ) + sum(shard["nbytes"] for n, a in FeatureStore.open(out).arrays.items() if n[:5] == "patch" for shard in a.shards)
        pull(shared, out)
        assert files(out) == files(written)

    @pytest.mark.parametrize("stub", [False, True])
    def test_what_comes_meanwhile_stays(self, stub: bool, shared: str, written: Path, tmp_path: Path) -> None:
        out = tmp_path / "features" / "one"
        if stub:
            write_stub(out, (written / "zarr.json").read_bytes())

        def put(_: int) -> None:
            (out / "patch/mine").mkdir(parents=True, exist_ok=True)
            (out / "patch/mine/notes.txt").write_text("mine")

        with pytest.raises(StoreError, match=r"notes\.txt"):
            pull(shared, out, progress=put)
        assert (out / "patch/mine/notes.txt").read_text() == "mine"
        os.rename(out / "patch/mine", tmp_path / "mine")
        assert files(pull(shared, out).path) == files(written)

    def test_into_a_stub(self, shared: str, written: Path, tmp_path: Path) -> None:
        out = tmp_path / "features" / "one"
        write_stub(out, (written / "zarr.json").read_bytes())
        assert is_stub(out)
        assert pull(shared, out, ["cls", "images"]).kinds == ["cls", "images"]
        assert not is_stub(out)
        pull(shared, out)
        assert files(out) == files(written)

    @pytest.mark.parametrize("stub", [False, True])
    def test_killed_anywhere(self, stub: bool, written: Path, tmp_path: Path) -> None:
        """After every so many files and renames; a folder is never taken for a set that it is not."""
        whole, out = files(written), tmp_path / "features" / "one"
        if stub:
            write_stub(out, whole["zarr.json"])
        for n in (0, 3, 20, 29, 40, 60, 61, 63, 66, 1000):
            ended = status(pull_until_killed, written, out, n)
            assert ended in (0, -signal.SIGKILL)
            if (out / "zarr.json").exists() and not is_stub(out):
                for kind in (p for p in out.iterdir() if (p / "zarr.json").exists()):
                    assert {f: c for f, c in files(out).items() if f.startswith(kind.name)} == {
                        f: c for f, c in whole.items() if f.startswith(kind.name)
                    }
        assert ended == 0
        assert files(out) == whole
        assert [p.name for p in out.parent.iterdir()] == ["one"]

    def test_what_an_interrupted_fetch_of_other_bytes_has_left(
        self, shared: str, written: Path, computed_elsewhere: Path, tmp_path: Path
    ) -> None:
        out, key = tmp_path / "features" / "one", FeatureStore.open(written).spec.key
        shutil.copytree(computed_elsewhere, out.parent / PULLED / f"one-{key}")
        pull(shared, out)
        assert files(out) == files(written)

    def test_kinds_that_an_interrupted_fetch_has_begun_and_nobody_wants_any_more(
        self, shared: str, written: Path, tmp_path: Path
    ) -> None:
        out, key = tmp_path / "features" / "one", FeatureStore.open(written).spec.key
        shutil.copytree(written / "patch/block5", out.parent / PULLED / f"one-{key}" / "patch/block5")
        assert pull(shared, out, ["cls"]).kinds == ["cls"]
        assert {p.name for p in out.iterdir()} == {"zarr.json", "cls"}

    def test_a_damaged_copy_is_mended(self, shared: str, written: Path, path: Path) -> None:
        (path / "patch/block5/view0/c/1/0/0").unlink()
        (path / "cls/block5/view0/c/0/0").write_bytes(b"x")
        pull(shared, path)
        assert files(path) == files(written)

    def test_damage_at_the_source(self, shared: str, tmp_path: Path) -> None:
        fs, root = at(shared)
        data = bytearray(fs.cat_file(f"{root}/images/label/c/0"))
        data[5] ^= 1
        for change, message in (
            (lambda: fs.pipe_file(f"{root}/images/label/c/0", bytes(data)), r"images/label/c/0 is damaged \(rows 0 to 31\)"),
            (lambda: fs.rm(f"{root}/patch/block5/view0/c/1/0/0"), "patch/block5/view0/c/1/0/0 is missing"),
            (lambda: fs.rm(f"{root}/patch", recursive=True), "patch/block3/view0 is missing; .*name another root"),
        ):
            change()
            with pytest.raises(StoreError, match=message):
                pull(shared, tmp_path / "one", ["images"] if "label" in message else ["patch"])
            assert not (tmp_path / "one").exists()
        assert pull(shared, tmp_path / "one", ["cls"]).kinds == ["cls"]

    def test_kinds_that_there_are_not(self, shared: str, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="unknown kind of arrays 'patches'; did you mean 'patch'"):
            pull(shared, tmp_path / "one", ["patches"])
        write(tmp_path / "lean", [a for a in layouts() if a.name == "images/label"], values(layouts()))
        with pytest.raises(StoreError, match="lean has no registers: its encoder has none, or it was extracted without"):
            pull(str(tmp_path / "lean"), tmp_path / "one", ["registers"])

    def test_other_files_in_the_folder(self, shared: str, computed_elsewhere: Path, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").write_text("mine")
        shutil.copytree(computed_elsewhere, tmp_path / "one")
        for name, message in (("one", "remove it first: beyondcls store rm"), ("mine", "name another folder with --to")):
            before = files(tmp_path / name)
            with pytest.raises(StoreError, match=rf"{name} (already )?holds .*{message}"):
                pull(shared, tmp_path / name)
            assert files(tmp_path / name) == before

    def test_too_little_space(self, shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
        with pytest.raises(StoreError, match=r"GB are to be fetched to .*, 1e-06 GB are free there"):
            pull(shared, tmp_path / "one")

    def test_two_at_a_time(self, shared: str, tmp_path: Path) -> None:
        key = FeatureStore.open(shared).spec.key
        with alone(tmp_path / PULLED / f"one-{key}", "one"), pytest.raises(StoreError, match="one is being written by process"):
            pull(shared, tmp_path / "one")
        pull(shared, tmp_path / "one")


def test_large_shards_go_in_pieces(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PIECE_NBYTES", 100)
    upload(FeatureStore.open(written), str(tmp_path / "up"))
    pull(str(tmp_path / "up"), tmp_path / "down")
    assert files(tmp_path / "down") == files(written)


@pytest.mark.parametrize("requests", [1, 3])
def test_the_first_failure_stops_the_others(requests: int) -> None:
    done: list[int] = []
    failed = Event()

    def do(i: int) -> None:
        done.append(i)
        if i == 2:
            failed.set()
            raise StoreError("two")
        if i > 2:
            failed.wait()
            time.sleep(0.01)

    with pytest.raises(StoreError, match="two"):
        list(map_parallel(do, range(1000), requests))
    assert len(done) < 1000
