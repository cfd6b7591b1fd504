"""What names a feature set, and what `beyondcls store gc` keeps, removes and never touches; `ls` and `rm` of named ones."""

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml

from pipelines.store import gc
from store import FeatureStore
from store.format.unfinished import write_stub
from store.moving.receipt import Receipt
from store.moving.transfer import upload
from store.places import place_at
from store.writing.publishing import staging_of
from tests.features import write_features
from tests.folders import files
from tests.pipelines.test_store_tools import held

OTHER = "other"  # a set that is always named: where nothing is, nothing is removed
DELETE = ("--delete", "--only-this-project")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Three sets, each with a key of its own."""
    folder = tmp_path_factory.mktemp("made")
    for seed, name in enumerate(("one", "two", OTHER)):
        write_features(folder / name, 8, 4, 4, seed=seed)
    return folder


class Shared:
    """A project, and a root with the sets `one` and `other`; a receipt names `other`."""

    def __init__(self, folder: Path, root: str, made: Path, command: Callable[..., tuple[int, str, str]]):
        self.folder, self.root, self.made, self.command = folder, root, made, command
        self.keys = {name: FeatureStore.open(made / name).spec.key for name in ("one", "two", OTHER)}

    def send(self, name: str, called: str | None = None) -> str:
        upload(FeatureStore.open(self.made / name), address := f"{self.root}/{called or name}-{self.keys[name]}")
        return address

    def receipt(self, name: str, called: str | None = None, folder: Path = Path()) -> bytes:
        (receipt := Receipt.from_store(FeatureStore.open(self.made / name))).write(folder / f"receipts/{called or name}.json")
        return receipt.to_json()

    def stub(self, name: str) -> bytes:
        write_stub(Path(f"features/{name}"), content := (self.made / name / "zarr.json").read_bytes())
        return content

    def lock(self, contents: dict[str, bytes | None], file: Path = Path("dvc.lock")) -> None:
        """A lock file with these outputs; None is a folder of unknown content."""
        outs = [
            {"path": path, "hash": "md5", "md5": f"{'0' * 32}.dir" if content is None else hashlib.md5(content).hexdigest()}
            for path, content in contents.items()
        ]
        file.write_text(yaml.safe_dump({"schema": "2.0", "stages": {"extract": {"cmd": "beyondcls", "outs": outs}}}))

    def zarr(self, name: str) -> bytes:
        return (self.made / name / "zarr.json").read_bytes()

    def gc(self, *options: object, status: int = 0) -> str:
        got, out, err = self.command("store", "gc", "--root", self.root, *options)
        assert got == status, out + err
        return out + err

    def unused(self, *options: object) -> set[str]:
        """What it lists, by the addresses' last part."""
        listed = re.findall(r"^(\S+) +[\d.]+ k?B  ", self.gc(*options).partition("\nkept ")[0], re.MULTILINE)
        return {address.rpartition("/")[2].rpartition("-")[0] for address in listed}

    def why(self, name: str, *options: object) -> str:
        """Why a set at the root is kept."""
        row = rf"^{re.escape(self.root)}/{name}-\w+ +[\d.]+ k?B  (.*)$"
        (why,) = re.findall(row, self.gc("--all", *options).partition("kept ")[2], re.MULTILINE)
        return why

    def left(self) -> set[str]:
        return {name.rpartition("-")[0] for name in place_at(self.root).names() if not name.startswith(".")}


def shared_at(root: str, tmp_path: Path, made: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> Shared:
    (folder := tmp_path / "project").mkdir()
    monkeypatch.chdir(folder)
    shared = Shared(folder, root, made, command)
    for name in ("one", OTHER):
        shared.send(name)
    shared.receipt(OTHER)
    return shared


@pytest.fixture
def shared(tmp_path, made, command, monkeypatch) -> Shared:
    return shared_at(str(tmp_path / "root"), tmp_path, made, command, monkeypatch)


@pytest.fixture
def remote(tmp_path, made, command, monkeypatch) -> Shared:
    return shared_at(f"memory://{uuid.uuid4().hex}/sets", tmp_path, made, command, monkeypatch)


@pytest.fixture(params=["shared", "remote"])
def anywhere(request) -> Shared:
    return request.getfixturevalue(request.param)


def test_what_nothing_names_goes(anywhere):
    output = anywhere.gc()
    assert f"{anywhere.root}/one-{anywhere.keys['one']}" in output
    assert "nothing was removed; --delete does it" in output
    assert "other branches and clones are not looked at" in output
    assert anywhere.left() == {"one", OTHER}, "a dry run"
    assert re.search(r"unused: 1 \([\d.]+ kB\); kept: 1 \([\d.]+ kB\); --all lists them", output)
    output = anywhere.gc(*DELETE)
    assert f"removed {anywhere.root}/one-{anywhere.keys['one']}" in output
    assert "freed " in output
    assert anywhere.left() == {OTHER}
    assert FeatureStore.open(f"{anywhere.root}/{OTHER}-{anywhere.keys[OTHER]}").arrays
    assert not anywhere.unused()


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda s: s.receipt("one", "called-otherwise"), "receipts/called-otherwise.json"),
        (lambda s: s.receipt("one", folder=Path("runs/first")), "runs/first/receipts/one.json"),
        (lambda s: s.stub("one"), "features/one/zarr.json"),
        (lambda s: s.lock({"features/one/zarr.json": s.zarr("one"), "features/one/patch": None}), "dvc.lock"),
        (lambda s: s.lock({"features/one/zarr.json": s.zarr("one")}, Path("features.dvc")), "features.dvc"),
    ],
    ids=["receipt", "receipt below", "stub", "lock file", "a .dvc file"],
)
def test_what_names_a_set(write, why, shared):
    write(shared)
    assert shared.why("one") == why
    Path(why).unlink()
    Path("receipts/one.check.json").write_text("{}")  # what a sample was compared with is no receipt
    assert shared.unused() == {"one"}


def test_a_copy_that_lacks_arrays_names_it(shared):
    shutil.copytree(shared.made / "one", "features/one")
    assert f"{shared.root}/one-" in shared.gc(), "all of it is here"
    shutil.rmtree("features/one/patch")
    assert shared.why("one") == "features/one/zarr.json"


def test_features_and_receipts_on_another_disk_and_experiments_that_run(shared, tmp_path):
    shared.receipt("one")
    Path("receipts").rename(tmp_path / "theirs")
    Path("receipts").symlink_to(tmp_path / "theirs")
    assert shared.why("one") == "receipts/one.json"
    Path("receipts/one.json").unlink()
    (folder := Path(".dvc/tmp/exps/standalone/tmp1")).mkdir(parents=True)
    shared.lock({"features/one/zarr.json": shared.zarr("one")}, folder / "dvc.lock")
    assert shared.why("one") == f"{folder}/dvc.lock"


def test_it_is_the_key_that_counts(shared, tmp_path):
    """Other bytes of the same set are kept, too; and its old versions are not."""
    again = write_features(tmp_path / "again", 8, 4, 4, seed=0, signal=1.0)
    upload(again, f"{shared.root}/again-{again.spec.key}")
    shared.send("two", "one")
    shared.lock({"features/one/zarr.json": shared.zarr("one")})
    assert shared.why("again") == "dvc.lock"
    assert shared.unused() == {"one"}
    assert f"one-{shared.keys['two']}" in shared.gc()


@pytest.mark.parametrize("out", ["receipts/one.json", "features/one", "features/one/patch", "features"])
def test_without_a_key_or_a_digest_at_hand_every_set_of_that_name_is_kept(out, shared):
    shared.send("two")
    content = shared.receipt("one") if out.startswith("receipts") else None
    shared.lock({out: content})
    if content is not None:
        assert shared.why("one") == "dvc.lock", "the very file is there"
        Path("receipts/one.json").unlink()
    assert shared.unused() == (set() if out == "features" else {"two"})
    assert "its key is not known here" in shared.why("one")
    assert "kept in doubt: dvc.lock" in shared.gc()


class TestFolder:
    """features/ of the project; the root has its own tests."""

    def in_features(self, shared: Shared, *options: str) -> set[str]:
        return set(
            re.findall(r"^features/(\S+) ", shared.command("store", "gc", "--root", "project", *options)[1], re.MULTILINE)
        )

    def test_outs_and_receipts(self, shared):
        for name in ("one", "two", OTHER):
            shutil.copytree(shared.made / name, f"features/{name}")
        assert self.in_features(shared) == {"one", "two"}
        shared.receipt("two")
        shared.lock({"features/one/zarr.json": b"changed since"})
        assert self.in_features(shared) == set()
        Path("receipts/two.json").unlink()
        assert self.in_features(shared, "--delete") == {"two"}
        assert {p.name for p in Path("features").iterdir()} == {"one", OTHER}
        assert shared.left() == {"one", OTHER}, "the root was not looked at"

    def test_named_sets_are_shown_and_stay(self, shared, tmp_path):
        """`ls` and `rm`, of a set that this project's lock file names and of one that another's does."""
        for name in ("one", "two", OTHER):
            shutil.copytree(shared.made / name, f"features/{name}")
            for file in Path(f"features/{name}").rglob("c/**/*"):
                os.utime(file, (86_400 * 365, 0))
        shared.lock({"features/one/zarr.json": shared.zarr("one")})
        shared.lock({"features/mine/zarr.json": shared.zarr("two")}, branch := tmp_path / "branch.lock")
        rows = [line.split() for line in shared.command("store", "ls", "--project", branch)[1].splitlines()]
        assert [(row[0], row[-2], row[-1]) for row in rows[1:3]] == [
            ("features/one", "1971-01-01", "dvc.lock"),
            ("features/other", shared.keys[OTHER][:8], "1971-01-01"),
        ]
        assert (rows[3][0], rows[3][-1]) == ("features/two", str(branch))
        remove = ("store", "rm", "--yes", "--project", branch)
        for name, lock in (("one", "dvc.lock"), ("two", branch)):
            status, _, err = shared.command(*remove, f"features/{name}")
            assert (status, f"{lock} names features/{name}, so it stays; --force removes it" in err) == (1, True)
        assert shared.command(*remove, "features/other")[0] == 0, "a receipt alone does not keep it"
        assert shared.command("store", "rm", "--yes", "features/two")[0] == 0
        assert shared.command(*remove, "features/one", "--force")[0] == 0
        assert list(Path("features").iterdir()) == []
        status, _, err = shared.command("store", "ls", "--project", tmp_path / "none")
        assert (status, "none is not a readable lock file" in err) == (1, True)

    def test_stubs_stay(self, shared):
        shared.stub("one")
        assert "unused: 0" in shared.gc(*DELETE)
        assert Path("features/one").is_dir()


class TestNeverTouched:
    def test_what_is_being_written(self, shared, monkeypatch):
        claims = held(staging_of(Path(f"{shared.root}/one-{shared.keys['one']}"), "0" * 32))
        assert "being written by process" in shared.why("one")
        shared.gc(*DELETE)
        with monkeypatch.context() as patch:  # as if it had begun after it was listed
            patch.setattr(gc, "staged_in", lambda folder: [])
            output = shared.gc(*DELETE, status=1)
        assert f"left: {shared.root}/one-{shared.keys['one']}" in output
        assert shared.left() == {"one", OTHER}
        claims.close()
        shared.gc(*DELETE)
        assert shared.left() == {OTHER}

    def test_foreign_files(self, anywhere):
        fs, root = fsspec.core.url_to_fs(anywhere.root)
        fs.pipe_file(notes := f"{root}/one-{anywhere.keys['one']}/notes.txt", b"mine")
        assert "notes.txt does not belong to a feature set; move it away first" in anywhere.why("one")
        anywhere.gc(*DELETE)
        assert anywhere.left() == {"one", OTHER}
        fs.rm(notes)
        anywhere.gc(*DELETE)
        assert anywhere.left() == {OTHER}

    def test_what_does_not_look_like_ours(self, shared):
        shutil.copytree(shared.made / "two", f"{shared.root}/two")  # no key in its name: somebody put it there
        Path(f"{shared.root}/link-{shared.keys['two']}").symlink_to(shared.made / "two")
        Path(f"{shared.root}/results-{'0' * 32}").mkdir()
        Path(f"{shared.root}/results-{'0' * 32}/metrics.json").write_text("{}")
        before = files(Path(shared.root))
        shared.receipt("one")
        assert "results-" not in shared.gc("--all")
        assert "unused: 0" in shared.command("store", "gc", shared.root, "--root", shared.root)[1], "the root as a folder"
        shared.gc(*DELETE)
        assert files(Path(shared.root)) == before

    def test_an_upload_that_may_still_go_on(self, remote, monkeypatch):
        fs, root = fsspec.core.url_to_fs(remote.root)
        fs.rm(f"{root}/one-{remote.keys['one']}/zarr.json")
        fs.pipe_file(f"{root}/one-{remote.keys['one']}/.writing/claims/0-0", b"{}")  # tasks may be at work
        assert "its last file came within a day" in remote.why("one")
        monkeypatch.setattr(gc, "RECENT", timedelta(0))
        assert "not written completely" in remote.gc()
        remote.receipt("one")
        assert remote.unused() == set(), "its command goes on with it"
        Path("receipts/one.json").unlink()
        remote.gc(*DELETE)
        assert remote.left() == {OTHER}

    def test_killed_half_way(self, remote, monkeypatch):
        """No reader takes what is left for a set, and the next command removes it."""
        fs, _ = fsspec.core.url_to_fs(remote.root)
        rm, left = type(fs).rm, [1]

        def killed(self: Any, names: Any, *arguments: Any, **options: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError("away")
            rm(self, names, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(type(fs), "rm", killed)
            assert "cannot be removed: away" in remote.gc(*DELETE, status=1)
        with pytest.raises(ValueError, match=r"it has no zarr\.json"):
            FeatureStore.open(f"{remote.root}/one-{remote.keys['one']}")
        monkeypatch.setattr(gc, "RECENT", timedelta(0))
        remote.gc(*DELETE)
        assert remote.left() == {OTHER}


class TestInDoubt:
    def test_other_projects(self, anywhere, tmp_path):
        output = anywhere.gc("--delete", status=1)
        assert f"{anywhere.root}/one-{anywhere.keys['one']} is outside of this project ({anywhere.folder})" in output
        assert anywhere.left() == {"one", OTHER}
        theirs, branch = tmp_path / "theirs", tmp_path / "branch.lock"
        anywhere.receipt("one", "mine", theirs)
        anywhere.lock({"features/two/zarr.json": anywhere.zarr("two")}, branch)
        anywhere.send("two")
        assert anywhere.unused("--project", theirs) == {"two"}
        both = ("--project", theirs, "--project", branch)
        assert anywhere.why("one", *both) == f"{theirs}/receipts/mine.json"
        assert anywhere.why("two", *both) == str(branch)
        anywhere.gc("--delete", *both)
        assert anywhere.left() == {"one", OTHER, "two"}
        anywhere.gc("--delete", "--project", theirs)
        assert anywhere.left() == {"one", OTHER}

    def test_nothing_names_anything_or_another_project_is_none(self, shared, tmp_path):
        (tmp_path / "empty").mkdir()
        assert f"nothing in {tmp_path}/empty refers to a feature set" in shared.gc("--project", tmp_path / "empty", status=1)
        assert f"there is no folder {tmp_path}/none" in shared.gc("--project", tmp_path / "none", status=1)
        shutil.rmtree("receipts")
        assert "nothing here refers to any feature set" in shared.gc(*DELETE, status=1)
        assert shared.left() == {"one", OTHER}

    def test_a_root_in_the_project(self, tmp_path, made, command, monkeypatch):
        shared = shared_at("sets", tmp_path, made, command, monkeypatch)
        shared.gc("--delete")
        assert shared.left() == {OTHER}

    @pytest.mark.parametrize("content", ["a: [", "- 5", "stages: {a: {outs: [{md5: x}]}}", "stages: [a]", "<<<<<<< ours\nx"])
    def test_a_lock_file_that_cannot_be_read(self, content, shared):
        Path("dvc.lock").write_text(content)
        assert "dvc.lock is not a readable lock file of DVC" in shared.gc(*DELETE, status=1)

    def test_other_files_that_cannot_be_read(self, shared, monkeypatch):
        Path("receipts/bad.json").write_text("{}")
        assert "receipts/bad.json is not a receipt" in shared.gc(status=1)
        Path("receipts/bad.json").unlink()
        shared.stub("two")
        file = Path("features/two/zarr.json")
        file.write_text(file.read_text().replace('"key"', '"kye"', 1))
        assert "features/two" in shared.gc(status=1)
        shutil.rmtree("features")
        Path("closed").mkdir()
        scandir = os.scandir

        def refuse(path: Any = ".") -> Any:
            if Path(path).name == "closed":
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
        assert f"{shared.folder}/closed cannot be searched (Permission denied)" in shared.gc(status=1)


def test_where_it_looks(shared, command, tmp_path, monkeypatch):
    status, _, err = command("store", "gc")
    assert (status, "there is no folder features, and no store.root" in err) == (1, True)
    Path("params.yaml").write_text(json.dumps({"store": {"root": shared.root}}))
    assert "unused: 1 " in command("store", "gc", "--params", "params.yaml")[1]
    (tmp_path / "user.toml").write_text(f'[store]\nroot = "{shared.root}"\n')
    monkeypatch.setenv("BEYONDCLS_CONFIG", str(tmp_path / "user.toml"))
    assert "unused: 1 " in command("store", "gc")[1]
    assert command("store", "gc", "--root", "project")[0] == 1
    assert "unused: 1 " in command("store", "gc", shared.root)[1]
    assert "store.root is '/', expected a folder or an address" in command("store", "gc", "--root", "/")[2]
