"""Copies of feature sets: the same bytes after any interruption, and no damaged or foreign byte."""

import errno
import os
import shutil
import signal
import time
import uuid
from collections import namedtuple
from pathlib import Path
from threading import Event

import fsspec  # type: ignore[import-untyped]
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from store import FeatureStore, StoreError
from store.format.unfinished import is_stub, write_stub
from store.moving import transfer
from store.moving.receipt import Receipt
from store.moving.transfer import PULLED, pull, upload
from store.places import LocalFolder, place_at
from store.places.object_store import ObjectStore
from store.places.place import map_parallel
from store.writing.claims import alone
from tests.folders import files
from tests.forked import kill_after, status
from tests.store.conftest import flip, layouts, values, write
from tests.store.test_disk import refuse
from tests.store.test_writing import before_call, content


@pytest.fixture(params=["memory", "folder"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}/sets/one" if request.param == "memory" else str(tmp_path / "shared" / "one")


@pytest.fixture
def store(written: Path) -> FeatureStore:
    return FeatureStore.open(written)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the shards whose bytes are read to be moved, in order."""
    names: list[str] = []
    real = transfer.pieces
    monkeypatch.setattr(transfer, "pieces", lambda a, i: (names.append(a.layout.file(i)), real(a, i))[1])
    return names


def upload_a_part(n: int, path: Path, address: str) -> dict[str, bytes]:
    """What is there when the upload of a file after the first n has failed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("store.places.object_store.AT_ONCE", 1)
        before_call(n, lambda: refuse(errno.ENETDOWN), patch, type(place_at(address)), "put")
        with pytest.raises(OSError, match="Network is down"):
            upload(FeatureStore.open(path), address)
    with pytest.raises(StoreError, match=r"is not a feature set: it has no zarr\.json"):
        FeatureStore.open(address)
    left = content(address)
    assert len(left) == n
    return left


def upload_until_killed(path: Path, address: str) -> None:
    kill_after(9, (LocalFolder, "put"))
    upload(FeatureStore.open(path), address)


def pull_until_killed(path: Path, out: Path, n: int) -> None:
    kill_after(n, (LocalFolder, "put"), (transfer, "write_file"), (os, "rename"), (shutil, "rmtree"))
    pull(str(path), out)


class TestUpload:
    def test_the_same_bytes(self, address: str, store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
        reported: list[int] = []
        upload(store, address, reported.append)
        assert content(address) == files(store.path)
        receipt = Receipt.from_store(store)
        assert sum(reported) == receipt.nbytes
        receipt.check(FeatureStore.open(address), whole=True)
        before_call(0, pytest.fail, monkeypatch, type(place_at(address)), "put")
        upload(store, address)  # nothing a second time

    def test_interrupted(self, address: str, store: FeatureStore, moved: list[str]) -> None:
        left = upload_a_part(7, store.path, address)
        moved.clear()
        upload(store, address)
        assert not left.keys() & set(moved), "what is there is not sent again"
        assert content(address) == files(store.path)

    def test_what_another_upload_has_left_does_not_count(self, address: str, written: Path, computed_elsewhere: Path) -> None:
        left, ours = upload_a_part(20, computed_elsewhere, address), files(written)
        assert sum(left[name] != ours[name] for name in left) > 10
        upload(FeatureStore.open(written), address)
        assert content(address) == ours

    def test_a_finished_set_of_other_bytes_is_left_alone(self, address: str, written: Path, computed_elsewhere: Path) -> None:
        upload(FeatureStore.open(computed_elsewhere), address)
        with pytest.raises(StoreError, match="holds another feature set, or one that was changed; remove it, or choose"):
            upload(FeatureStore.open(written), address)
        assert content(address) == files(computed_elsewhere)

    def test_files_of_none(self, address: str, store: FeatureStore) -> None:
        place_at(address).put(name := "patch/block5/view0/c/17/0/0", [b"x"], 1)
        with pytest.raises(StoreError, match=f"holds 1 files that do not belong to this set, first {name}"):
            upload(store, address)

    def test_damaged_and_deleted_shards_of_a_finished_copy(self, address: str, store: FeatureStore, moved: list[str]) -> None:
        upload(store, address)
        gone, cut = "patch/block5/view0/c/1/0/0", "cls/block5/view0/c/0/0"
        place_at(address).remove([gone])
        place_at(address).put(cut, [b"x"], 1)
        moved.clear()
        upload(store, address)
        assert sorted(moved) == [cut, gone]
        assert content(address) == files(store.path)

    def test_a_damaged_local_shard_is_not_sent(self, address: str, path: Path) -> None:
        flip(path / "images/label/c/0", -10)
        with pytest.raises(StoreError, match=r"images/label/c/0 is damaged \(its tail\)"):
            upload(FeatureStore.open(path), address)
        assert not {"images/label/c/0", "zarr.json"} & set(content(address))

    def test_a_service_that_loses_what_it_took(self, store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
        real, address = ObjectStore.put, f"memory://{uuid.uuid4().hex}/one"
        lossy = lambda self, name, *given: None if name == "norm/bias/c/0" else real(self, name, *given)  # noqa: E731
        monkeypatch.setattr(ObjectStore, "put", lossy)
        with pytest.raises(StoreError, match="norm/bias/c/0 has no bytes after it was sent, expected"):
            upload(store, address)
        assert "zarr.json" not in content(address)

    def test_a_place_where_nobody_may_write(self, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match=r"cannot be written.*it goes on where it was"):
            upload(store, str(tmp_path / "file" / "one"))
        monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda *_, **__: refuse(errno.EACCES))
        with pytest.raises(StoreError, match=r"cannot be written: .*Permission denied; check the network, your credentials"):
            upload(store, "memory://nobody/one")

    def test_killed(self, store: FeatureStore, tmp_path: Path) -> None:
        assert status(upload_until_killed, store.path, str(tmp_path / "one")) == -signal.SIGKILL
        assert 0 < len(content(tmp_path / "one")) < len(files(store.path))
        upload(store, str(tmp_path / "one"))
        assert files(tmp_path / "one") == files(store.path)


@pytest.fixture
def shared(address: str, store: FeatureStore) -> str:
    upload(store, address)
    return address


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "features" / "one"


@pytest.fixture(params=[False, True], ids=["nothing", "a stub"])
def _begun(request: pytest.FixtureRequest, out: Path, written: Path) -> None:
    if request.param:
        write_stub(out, (written / "zarr.json").read_bytes())
        assert is_stub(out)


class TestPull:
    @pytest.mark.usefixtures("_begun")
    def test_some_kinds_then_others_then_all(self, shared: str, written: Path, out: Path, moved: list[str]) -> None:
        store = pull(shared, out, ["cls", "images"])
        assert store.kinds == ["cls", "images"]
        assert not is_stub(out)
        assert not (out / "patch").exists()
        moved.clear()
        reported: list[int] = []
        store = pull(shared, out, ["cls", "patch"], reported.append)
        assert {name.partition("/c/")[0] for name in moved} == {"patch/block3/view0", "patch/block5/view0"}
        assert sum(reported) == sum(s["nbytes"] for n, a in store.arrays.items() if n[:3] in ("cls", "pat") for s in a.shards)
        reported.clear()
        receipt = Receipt.from_store(pull(shared, out, progress=reported.append))
        assert sum(reported) == receipt.nbytes
        assert files(out) == files(written)
        assert [p.name for p in out.parent.iterdir()] == ["one"], "nothing is left behind"

    @pytest.mark.usefixtures("_begun")
    def test_what_comes_meanwhile_stays(self, shared: str, written: Path, out: Path, tmp_path: Path) -> None:
        def put(_: int) -> None:
            (out / "patch/mine").mkdir(parents=True, exist_ok=True)
            (out / "patch/mine/notes.txt").write_text("mine")

        with pytest.raises(StoreError, match=r"notes\.txt"):
            pull(shared, out, progress=put)
        assert (out / "patch/mine/notes.txt").read_text() == "mine"
        os.rename(out / "patch/mine", tmp_path / "mine")
        assert files(pull(shared, out).path) == files(written)

    @pytest.mark.usefixtures("_begun")
    def test_killed_anywhere(self, written: Path, out: Path) -> None:
        """After every so many files and renames; a folder is never taken for a set that it is not."""
        whole = files(written)
        for n in (3, 29, 60, 61, 63, 66, 1000):
            ended = status(pull_until_killed, written, out, n)
            assert ended in (0, -signal.SIGKILL)
            if (out / "zarr.json").exists() and not is_stub(out):
                kinds = tuple(f"{path.parent.name}/" for path in out.glob("*/zarr.json"))
                present, expected = ({n: c for n, c in one.items() if n.startswith(kinds)} for one in (files(out), whole))
                assert present == expected
        assert ended == 0
        assert files(out) == whole
        assert [p.name for p in out.parent.iterdir()] == ["one"]

    @pytest.mark.parametrize("kinds", [None, ["cls"]], ids=["all", "other kinds"])
    def test_what_an_interrupted_fetch_of_other_bytes_has_left(
        self, kinds: list[str] | None, shared: str, store: FeatureStore, computed_elsewhere: Path, out: Path
    ) -> None:
        shutil.copytree(computed_elsewhere, out.parent / PULLED / f"one-{store.spec.key}")
        pull(shared, out, kinds)
        names = None if kinds is None else ("zarr.json", "cls/")
        assert files(out) == {n: c for n, c in files(store.path).items() if names is None or n.startswith(names)}

    def test_a_damaged_copy_is_mended(self, shared: str, written: Path, path: Path) -> None:
        (path / "patch/block5/view0/c/1/0/0").unlink()
        (path / "cls/block5/view0/c/0/0").write_bytes(b"x")
        pull(shared, path)
        assert files(path) == files(written)

    def test_damage_at_the_source(self, shared: str, out: Path) -> None:
        fs, root = fsspec.core.url_to_fs(shared)
        data = bytearray(fs.cat_file(f"{root}/images/label/c/0"))
        data[5] ^= 1
        for change, message in (
            (lambda: fs.pipe_file(f"{root}/images/label/c/0", bytes(data)), r"images/label/c/0 is damaged \(rows 0 to 31\)"),
            (lambda: fs.rm(f"{root}/patch/block5/view0/c/1/0/0"), "patch/block5/view0/c/1/0/0 is missing"),
            (lambda: fs.rm(f"{root}/patch", recursive=True), "patch/block3/view0 is missing; .*name another root"),
        ):
            change()
            with pytest.raises(StoreError, match=message):
                pull(shared, out, ["images"] if "label" in message else ["patch"])
            assert not out.exists()
        assert pull(shared, out, ["cls"]).kinds == ["cls"]

    def test_kinds_that_there_are_not(self, shared: str, out: Path, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="unknown kind of arrays 'patches'; did you mean 'patch'"):
            pull(shared, out, ["patches"])
        write(tmp_path / "lean", [a for a in layouts() if a.name == "images/label"], values(layouts()))
        with pytest.raises(StoreError, match="lean has no registers: its encoder has none, or it was extracted without"):
            pull(str(tmp_path / "lean"), out, ["registers"])

    def test_other_files_in_the_folder(self, shared: str, computed_elsewhere: Path, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").write_text("mine")
        shutil.copytree(computed_elsewhere, tmp_path / "one")
        for name, message in (("one", "remove it first: beyondcls store rm"), ("mine", "name another folder with --to")):
            before = files(tmp_path / name)
            with pytest.raises(StoreError, match=rf"{name} (already )?holds .*{message}"):
                pull(shared, tmp_path / name)
            assert files(tmp_path / name) == before

    def test_too_little_space(self, shared: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
        with pytest.raises(StoreError, match=r"GB are to be fetched to .*, 1e-06 GB are free there"):
            pull(shared, out)

    def test_two_at_a_time(self, shared: str, store: FeatureStore, out: Path) -> None:
        claimed = alone(out.parent / PULLED / f"one-{store.spec.key}", "one")
        with claimed, pytest.raises(StoreError, match="one is being written by process"):
            pull(shared, out)


def test_large_shards_go_in_pieces(store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PIECE_NBYTES", 100)
    upload(store, str(tmp_path / "up"))
    pull(str(tmp_path / "up"), tmp_path / "down")
    assert files(tmp_path / "down") == files(store.path)


def test_the_first_failure_stops_the_others() -> None:
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
        list(map_parallel(do, range(1000), 3))
    assert len(done) < 1000
