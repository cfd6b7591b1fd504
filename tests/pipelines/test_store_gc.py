"""`beyondcls store gc`: what keeps a feature set, what frees it, and what is never touched."""

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

from pipelines.store import leftovers
from store import FeatureStore
from store.format.unfinished import write_stub
from store.moving.receipt import Receipt
from store.moving.transfer import upload
from store.places import place_at
from store.writing.claims import ALONE
from store.writing.publishing import staging_of
from tests.features import write_features
from tests.folders import files
from tests.machines.machine import git
from tests.pipelines.test_store_tools import held, staged

OTHER = "other"  # a set that is always referred to: where nothing is, nothing is removed


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Three sets, each with a key of its own."""
    folder = tmp_path_factory.mktemp("made")
    for seed, name in enumerate(("one", "two", OTHER)):
        write_features(folder / name, 8, 4, 4, seed=seed)
    return folder


class Shared:
    """A project, and a root with the sets `one` and `other`; a receipt refers to `other`."""

    def __init__(self, folder: Path, root: str, made: Path, command: Callable[..., tuple[int, str, str]]):
        self.folder, self.root, self.made, self.command = folder, root, made, command
        self.keys = {name: FeatureStore.open(made / name).spec.key for name in ("one", "two", OTHER)}

    def send(self, name: str, called: str | None = None) -> str:
        address = f"{self.root}/{called or name}-{self.keys[name]}"
        upload(FeatureStore.open(self.made / name), address)
        return address

    def receipt(self, name: str, called: str | None = None, folder: Path = Path()) -> Path:
        file = folder / f"receipts/{called or name}.json"
        Receipt.from_store(FeatureStore.open(self.made / name)).write(file)
        return file

    def stub(self, name: str, folder: Path = Path()) -> Path:
        write_stub(folder / f"features/{name}", (self.made / name / "zarr.json").read_bytes())
        return folder / f"features/{name}"

    def lock(self, *names: str, cached: bool = True, receipts: bool = True, stubs: bool = True, folder: Path = Path()) -> None:
        """dvc.lock, as if a stage had extracted these sets, and the cache of DVC."""
        outs = []
        for name in names:
            contents = {}
            if receipts:
                contents[f"receipts/{name}.json"] = Receipt.from_store(FeatureStore.open(self.made / name)).to_json()
            if stubs:
                contents[f"features/{name}/zarr.json"] = (self.made / name / "zarr.json").read_bytes()
            outs += [
                {"path": path, "hash": "md5", "md5": self.cache(content, cached, folder)} for path, content in contents.items()
            ]
            outs.append({"path": f"features/{name}/patch", "hash": "md5", "md5": f"{'0' * 32}.dir"})
        stages = {"extract": {"cmd": "beyondcls", "deps": [{"path": "data", "md5": "1" * 32}], "outs": outs}}
        (folder / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))

    def cache(self, content: bytes, cached: bool = True, folder: Path = Path(), suffix: str = "") -> str:
        md5 = hashlib.md5(content).hexdigest() + suffix
        if cached:
            file = folder / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return md5

    def commit(self, branch: str | None = None, folder: Path = Path()) -> None:
        """All files as they are now, and then none of them, if it is another branch."""
        if not (folder / ".git").exists():
            git(folder, "init", "-q", "-b", "main")
            (folder / ".gitignore").write_text("/receipts/\n/features/\n/.dvc/\n/params.yaml\n")
            git(folder, "add", ".gitignore")
            git(folder, "commit", "-q", "-m", "Begun")
        if branch:
            git(folder, "checkout", "-q", "-b", branch)
        git(folder, "add", "--all")
        git(folder, "commit", "-q", "--allow-empty", "-m", "All")
        if branch:
            git(folder, "checkout", "-q", "main")

    def gc(self, *options: object, status: int = 0) -> str:
        got, out, err = self.command("store", "gc", "--root", self.root, *options)
        assert got == status, out + err
        return out + err

    def unused(self, *options: object) -> set[str]:
        """What it lists, by the addresses' last part."""
        listed = re.findall(r"^(\S+) +[\d.]+ k?B  ", self.gc(*options).partition("\nkept ")[0], re.MULTILINE)
        return {address.rpartition("/")[2].rpartition("-")[0] for address in listed}

    def why(self, name: str) -> str:
        """Why a set at the root is kept."""
        (why,) = re.findall(rf"^{re.escape(self.root)}/{name}-\w+ +[\d.]+ k?B  (.*)$", self.gc("--all"), re.MULTILINE)
        return why

    def left(self) -> set[str]:
        return {name.rpartition("-")[0] for name in place_at(self.root).names() if not name.startswith(".")}


def shared_at(root: str, tmp_path: Path, made: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> Shared:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # DVC's settings of this user
    shared = Shared(folder, root, made, command)
    for name in ("one", OTHER):
        shared.send(name)
    shared.receipt(OTHER)
    return shared


@pytest.fixture
def shared(tmp_path, made, command, monkeypatch) -> Shared:
    return shared_at(str(tmp_path / "root"), tmp_path, made, command, monkeypatch)


@pytest.fixture(params=["folder", "object store"])
def anywhere(request, tmp_path, made, command, monkeypatch) -> Shared:
    root = str(tmp_path / "root") if request.param == "folder" else f"memory://{uuid.uuid4().hex}/sets"
    return shared_at(root, tmp_path, made, command, monkeypatch)


def test_what_nothing_refers_to_goes(anywhere):
    output = anywhere.gc()
    assert f"{anywhere.root}/one-{anywhere.keys['one']}" in output
    assert "nothing refers to it" in output
    assert "nothing was removed; --delete does it" in output
    assert anywhere.left() == {"one", OTHER}, "a dry run"
    assert re.search(r"unused: 1 \([\d.]+ kB\); kept: 1 \([\d.]+ kB\); --all lists them", output)
    output = anywhere.gc("--delete", "--only-this-project")
    assert f"removed {anywhere.root}/one-{anywhere.keys['one']}" in output
    assert "freed " in output
    assert anywhere.left() == {OTHER}
    assert FeatureStore.open(f"{anywhere.root}/{OTHER}-{anywhere.keys[OTHER]}").arrays
    assert not anywhere.unused()


class TestReferences:
    """Each keeps its set; without it, the set is free."""

    @pytest.mark.parametrize(
        ("write", "why"),
        [
            (lambda shared: shared.receipt("one", "called-otherwise"), "receipts/called-otherwise.json"),
            (lambda shared: shared.stub("one"), "features/one/zarr.json"),
            (lambda shared: shared.lock("one"), "dvc.lock"),
            (lambda shared: shared.lock("one", stubs=False), "dvc.lock"),
            (lambda shared: shared.lock("one", receipts=False), "dvc.lock"),
        ],
        ids=["receipt", "stub", "lock file", "receipt in a lock file", "stub in a lock file"],
    )
    def test_in_the_project(self, write, why, shared):
        write(shared)
        assert shared.unused() == set()
        assert shared.why("one") == why
        Path(why).unlink()
        assert shared.unused() == {"one"}

    def test_what_lies_beside_receipts(self, shared):
        """What a sample was compared with is no receipt, in a folder, in git, or in a lock file."""
        Path("receipts/one.check.json").write_text("{}")
        assert shared.unused() == {"one"}
        git(Path(), "init", "-q", "-b", "main")
        git(Path(), "add", "--all")
        git(Path(), "commit", "-q", "-m", "All")
        md5 = shared.cache(b"{}")
        lock = {"stages": {"extract": {"outs": [{"path": "receipts/one.check.json", "hash": "md5", "md5": md5}]}}}
        Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", **lock}))
        assert shared.unused() == {"one"}

    def test_a_copy_that_lacks_arrays(self, shared):
        shutil.copytree(shared.made / "one", "features/one")
        assert f"{shared.root}/one-" in shared.gc(), "all of it is here"
        shutil.rmtree("features/one/patch")
        assert shared.why("one") == "features/one/zarr.json"

    @pytest.mark.parametrize("ref", ["branch", "remote branch", "tag", "annotated tag", "experiment", "detached"])
    def test_what_git_has(self, ref, shared):
        shared.lock("one")
        shared.commit("branch")
        assert not Path("dvc.lock").exists()
        assert shared.why("one") == "dvc.lock of branch branch"
        refs = {"remote branch": "refs/remotes/origin/x", "tag": "refs/tags/x", "experiment": "refs/exps/ab/cdef/x"}
        if ref in refs:
            git(shared.folder, "update-ref", refs[ref], "branch")
        elif ref == "annotated tag":
            git(shared.folder, "tag", "-a", "-m", "x", "x", "branch")
        elif ref == "detached":
            git(shared.folder, "checkout", "-q", "--detach", "branch")
            Path("dvc.lock").unlink()
        git(shared.folder, "branch", "-q", "-D", "branch")
        if ref == "branch":
            assert shared.unused() == {"one"}
            return
        names = {"remote branch": "remote branch origin/x", "annotated tag": "tag x", "detached": "HEAD"}
        assert shared.why("one") == f"dvc.lock of {names.get(ref, f'{ref} x')}"
        for name in ("refs/remotes/origin/x", "refs/tags/x", "refs/exps/ab/cdef/x"):
            git(shared.folder, "update-ref", "-d", name)
        git(shared.folder, "checkout", "-q", "main")
        assert shared.unused() == {"one"}

    def test_a_tag_of_no_commit(self, shared):
        """Git's own repository has one: a public key."""
        shared.commit()
        blob = git(shared.folder, "hash-object", "-w", ".gitignore").strip()
        git(shared.folder, "tag", "key", blob)
        git(shared.folder, "tag", "-a", "-m", "x", "signed", blob)
        assert shared.unused() == {"one"}

    def test_another_working_tree(self, shared, tmp_path):
        shared.lock("one")
        shared.commit("branch")
        git(shared.folder, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"), "branch")
        git(shared.folder, "branch", "-q", "-D", "branch")
        assert shared.why("one") == "dvc.lock of HEAD"

    @pytest.mark.parametrize("what", ["receipt", "stub", "one.dvc"])
    def test_files_that_git_keeps_itself(self, what, shared):
        shared.commit()
        Path(".gitignore").write_text("/.dvc/\n/receipts/other.json\n")
        if what == "one.dvc":
            md5 = shared.cache((shared.made / "one/zarr.json").read_bytes())
            listed = shared.cache(json.dumps([{"md5": md5, "relpath": "zarr.json"}]).encode(), suffix=".dir")
            Path("features").mkdir()
            Path("features/one.dvc").write_text(f"outs:\n- md5: {listed}\n  path: one\n")
        path = {"receipt": lambda: shared.receipt("one"), "stub": lambda: shared.stub("one"), "one.dvc": lambda: None}[what]()
        shared.commit("branch")
        name = path / "zarr.json" if what == "stub" else path or "features/one.dvc"
        assert shared.why("one") == f"{name} of branch branch"
        git(shared.folder, "branch", "-q", "-D", "branch")
        assert shared.unused() == {"one"}

    def test_a_project_below_the_repository(self, shared, monkeypatch):
        shared.lock("one")
        shared.commit("branch")
        Path("below").mkdir()
        shutil.move("receipts", "below/receipts")
        shutil.move(".dvc", "below/.dvc")
        monkeypatch.chdir("below")
        assert shared.why("one") == "dvc.lock of branch branch"

    def test_features_and_receipts_on_another_disk(self, shared, tmp_path):
        shared.send("two")
        shared.receipt("one")
        shared.stub("two")
        for name in ("receipts", "features"):
            Path(name).rename(tmp_path / f"their-{name}")
            Path(name).symlink_to(tmp_path / f"their-{name}")
        assert shared.why("one") == "receipts/one.json"
        assert shared.why("two") == "features/two/zarr.json"

    def test_an_experiment_that_is_running(self, shared):
        folder = Path(".dvc/tmp/exps/standalone/tmp1")
        folder.mkdir(parents=True)
        shared.lock("one")
        Path("dvc.lock").rename(folder / "dvc.lock")
        assert shared.why("one") == f"{folder}/dvc.lock"

    def test_the_same_features_computed_again(self, shared, tmp_path):
        """It is the key that counts: other bytes of the same set are kept, too."""
        again = write_features(tmp_path / "again", 8, 4, 4, seed=0, signal=1.0)
        assert again.spec.key == shared.keys["one"]
        upload(again, f"{shared.root}/again-{again.spec.key}")
        shared.lock("one", receipts=False)
        assert shared.why("again") == "dvc.lock"

    def test_receipts_anywhere_in_the_project(self, shared):
        shared.receipt("one", folder=Path("runs/first"))
        assert shared.why("one") == "runs/first/receipts/one.json"


class TestTheCacheOfDVC:
    @pytest.mark.parametrize("place", ["config", "config.local", "user", "DVC 2"])
    def test_where_it_is(self, place, shared, tmp_path):
        shared.lock("one", stubs=False)
        Path(".dvc/cache").rename(tmp_path / "cache")
        assert "not in DVC's cache" in shared.why("one")
        if place == "DVC 2":
            Path(".dvc/cache").mkdir()
            for entry in (tmp_path / "cache/files/md5").iterdir():
                entry.rename(Path(".dvc/cache") / entry.name)
        else:
            file = tmp_path / "dvc/config" if place == "user" else Path(".dvc") / place
            file.parent.mkdir(exist_ok=True)
            folder = os.path.relpath(tmp_path / "cache", file.parent)
            file.write_text(f"[core]\n    remote = x\n[cache]\n    type = copy\n    dir = {folder}\n")
        assert shared.why("one") == "dvc.lock"

    def test_a_receipt_that_is_not_there(self, shared):
        """Nothing tells the key: whatever has the name is kept."""
        shared.send("two", "one")
        shared.send("two")
        shared.lock("one", cached=False, stubs=False)
        md5 = shared.cache(Receipt.from_store(FeatureStore.open(shared.made / "one")).to_json(), cached=False)
        assert shared.unused() == {"two"}
        why = f"dvc.lock: its key is not known, for {md5} is not in DVC's cache here; `dvc fetch --all-branches"
        assert shared.gc("--all").count(why) == 2
        assert f"kept in doubt: {why}" in shared.gc()
        Path("dvc.lock").unlink()
        assert shared.unused() == {"one", "two"}

    def test_a_stub_that_is_not_there_is_known_by_its_digest(self, anywhere):
        """Under whatever name, and no other of the name in the lock file is kept for it."""
        anywhere.send("two", "one")
        fs, root = fsspec.core.url_to_fs(anywhere.root)
        fs.mv(f"{root}/one-{anywhere.keys['one']}", f"{root}/theirs-{anywhere.keys['one']}", recursive=True)
        anywhere.lock("one", cached=False)
        assert anywhere.unused() == {"one"}
        assert anywhere.why("theirs") == "dvc.lock"

    def test_a_file_that_was_changed_there(self, shared):
        shared.lock("one", stubs=False)
        (file,) = Path(".dvc/cache/files/md5").glob("??/*")
        file.write_bytes(Receipt.from_store(FeatureStore.open(shared.made / "two")).to_json())
        assert "its key is not known" in shared.why("one")

    @pytest.mark.parametrize("cached", [True, False])
    @pytest.mark.parametrize("path", ["features/one", "features"])
    def test_folders_as_a_whole(self, path, cached, shared):
        md5 = shared.cache((shared.made / "one/zarr.json").read_bytes())
        inside = "zarr.json" if path == "features/one" else "one/zarr.json"
        listed = shared.cache(json.dumps([{"md5": md5, "relpath": inside}]).encode(), cached, suffix=".dir")
        out = {"path": path, "md5": listed}
        Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {"x": {"cmd": "x", "outs": [out]}}}))
        shared.send("two")
        assert shared.unused() == (set() if path == "features" and not cached else {"two"})
        assert ("its key is not known" in shared.why("one")) is not cached


class TestFolder:
    """features/ of the project; the root has its own tests."""

    def in_features(self, shared: Shared) -> set[str]:
        return set(re.findall(r"^features/(\S+) ", shared.command("store", "gc", "--root", "project")[1], re.MULTILINE))

    def test_outs_and_receipts(self, shared):
        for name in ("one", "two", OTHER):
            shutil.copytree(shared.made / name, f"features/{name}")
        assert self.in_features(shared) == {"one", "two"}
        shared.receipt("two")
        assert self.in_features(shared) == {"one"}
        shared.lock("one")
        assert self.in_features(shared) == set()
        Path("receipts/two.json").unlink()
        status, out, _ = shared.command("store", "gc", "--root", "project", "--delete")
        assert (status, "removed features/two" in out) == (0, True)
        assert {p.name for p in Path("features").iterdir()} == {"one", OTHER}
        assert shared.left() == {"one", OTHER}, "the root was not looked at"

    def test_an_out_that_changed_since(self, shared):
        """Its lock file has another digest, but it is the out."""
        shared.lock("one")
        shutil.copytree(shared.made / "two", "features/one")
        assert self.in_features(shared) == set()

    def test_stubs_are_references_and_stay(self, shared):
        stub = shared.stub("one")
        assert "unused: 0" in shared.gc("--delete", "--only-this-project")
        assert not re.search(r"^features/one ", shared.gc("--all"), re.MULTILINE)
        assert stub.is_dir()

    def test_unfinished(self, shared):
        with staged(Path("features/half")) as writer:
            assert writer.claim(1)
            output = shared.command("store", "gc", "--root", "project", "--all")[1]
            assert re.search(r"kept .*half-\w+ .*being written by process \d+", output, re.DOTALL)
            assert "unused: 0" in output
            shared.command("store", "gc", "--root", "project", "--delete")
            assert writer.staging.exists()
        key = writer.spec.key
        shutil.copytree(shared.made / "one", f"features/.upload/sent-{key}")
        shutil.copytree(shared.made / "one", f"features/.upload/gone-{key}.removed")
        shutil.copytree(shared.made / "one", f"features/.pull/fetched-{key}")
        (Path("features/.staging") / f".removed-rest-{key}" / "patch").mkdir(parents=True)
        claims = held(Path(f"features/.upload/sent-{key}{ALONE}"))
        output = shared.command("store", "gc", "--root", "project")[1]
        assert re.search(rf"^features/.staging/half-{key} .*1 of 2 units done, nobody writes it$", output, re.MULTILINE)
        assert re.search(rf"^features/.staging/.removed-rest-{key} .*half removed$", output, re.MULTILINE)
        assert re.search(rf"^features/.upload/gone-{key}.removed .*half removed$", output, re.MULTILINE)
        assert re.search(rf"^features/.pull/fetched-{key} .*not fetched yet$", output, re.MULTILINE)
        assert "not uploaded yet" not in output
        claims.close()
        assert "not uploaded yet" in shared.command("store", "gc", "--root", "project")[1]
        shared.command("store", "gc", "--root", "project", "--delete")
        assert list(Path("features").iterdir()) == []

    def test_what_somebody_would_go_on_with(self, shared):
        """A receipt wants the set: what is unfinished of it is kept, until the set is whole."""
        shutil.copytree(shared.made / "two", f"features/.upload/two-{shared.keys['two']}")
        shared.receipt("two")
        assert "unused: 1 " in shared.gc(), "`one` at the root"
        shared.send("two", "theirs")
        output = shared.gc()
        assert re.search(rf"features/.upload/two-{shared.keys['two']} .*not uploaded yet", output)


class TestNeverTouched:
    def test_what_is_being_written(self, shared):
        claims = held(staging_of(Path(f"{shared.root}/one-{shared.keys['one']}"), "0" * 32))
        assert "being written by process" in shared.why("one")
        assert shared.left() == {"one", OTHER}
        shared.gc("--delete", "--only-this-project")
        assert shared.left() == {"one", OTHER}
        claims.close()
        shared.gc("--delete", "--only-this-project")
        assert shared.left() == {OTHER}

    def test_locked_after_it_was_listed(self, shared, monkeypatch):
        """What cannot be removed is left and named, the rest goes."""
        shared.send("two")
        claims = held(staging_of(Path(f"{shared.root}/one-{shared.keys['one']}"), "0" * 32))
        monkeypatch.setattr(leftovers, "_written", lambda path: "")
        output = shared.gc("--delete", "--only-this-project", status=1)
        assert f"left: {shared.root}/one-{shared.keys['one']}" in output
        assert "is being written by process" in output
        assert shared.left() == {"one", OTHER}
        claims.close()

    def test_an_upload_that_began_after_it_was_listed(self, shared, monkeypatch):
        path = Path(f"features/.upload/two-{shared.keys['two']}")
        shutil.copytree(shared.made / "two", path)
        claims = held(path.with_name(f"{path.name}{ALONE}"))
        monkeypatch.setattr(leftovers, "holder", lambda place: None)
        assert f"left: {path}" in shared.gc("--delete", "--only-this-project", status=1)
        assert files(path) == files(shared.made / "two")
        claims.close()

    def test_foreign_files(self, anywhere):
        fs, root = fsspec.core.url_to_fs(anywhere.root)
        fs.pipe_file(f"{root}/one-{anywhere.keys['one']}/notes.txt", b"mine")
        assert "notes.txt does not belong to a feature set; move it away first" in anywhere.why("one")
        anywhere.gc("--delete", "--only-this-project")
        assert anywhere.left() == {"one", OTHER}
        fs.rm(f"{root}/one-{anywhere.keys['one']}/notes.txt")
        anywhere.gc("--delete", "--only-this-project")
        assert anywhere.left() == {OTHER}

    def test_what_does_not_look_like_ours(self, shared, tmp_path):
        shutil.copytree(shared.made / "two", f"{shared.root}/two")  # no key in its name: somebody put it there
        Path(f"{shared.root}/link-{shared.keys['two']}").symlink_to(shared.made / "two")
        Path(f"{shared.root}/results-{'0' * 32}").mkdir()
        Path(f"{shared.root}/results-{'0' * 32}/metrics.json").write_text("{}")
        before = files(Path(shared.root))
        shared.receipt("one")
        assert shared.unused() == set()
        assert "results-" not in shared.gc("--all")
        assert "unused: 0" in shared.command("store", "gc", shared.root, "--root", shared.root)[1], (
            "the root, named as a folder"
        )
        shared.gc("--delete", "--only-this-project")
        assert files(Path(shared.root)) == before

    def test_an_upload_that_may_still_go_on(self, tmp_path, made, command, monkeypatch):
        shared = shared_at(f"memory://{uuid.uuid4().hex}/sets", tmp_path, made, command, monkeypatch)
        fs, root = fsspec.core.url_to_fs(shared.root)
        fs.rm(f"{root}/one-{shared.keys['one']}/zarr.json")
        fs.pipe_file(f"{root}/one-{shared.keys['one']}/.writing/claims/0-0", b"{}")  # tasks may be at work
        assert "its last file came within a day" in shared.why("one")
        assert shared.unused() == set()
        monkeypatch.setattr(leftovers, "RECENT", timedelta(0))
        assert "not written completely" in shared.gc()
        shared.receipt("one")
        assert shared.unused() == set(), "its command goes on with it"
        Path("receipts/one.json").unlink()
        shared.gc("--delete", "--only-this-project")
        assert shared.left() == {OTHER}

    def test_killed_half_way(self, tmp_path, made, command, monkeypatch):
        """No reader takes what is left for a set, and the next command removes it."""
        shared = shared_at(f"memory://{uuid.uuid4().hex}/sets", tmp_path, made, command, monkeypatch)
        fs, _ = fsspec.core.url_to_fs(shared.root)
        rm, left = type(fs).rm, [1]

        def killed(self: Any, names: Any, *arguments: Any, **options: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError("away")
            rm(self, names, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(type(fs), "rm", killed)
            assert "cannot be removed: away" in shared.gc("--delete", "--only-this-project", status=1)
        assert shared.left() == {"one", OTHER}
        with pytest.raises(ValueError, match=r"it has no zarr\.json"):
            FeatureStore.open(f"{shared.root}/one-{shared.keys['one']}")
        monkeypatch.setattr(leftovers, "RECENT", timedelta(0))
        shared.gc("--delete", "--only-this-project")
        assert shared.left() == {OTHER}


class TestInDoubt:
    def test_other_projects(self, anywhere, tmp_path):
        output = anywhere.gc("--delete", status=1)
        assert f"{anywhere.root}/one-{anywhere.keys['one']} is outside of this project ({anywhere.folder})" in output
        assert "name their folders with --project, or say --only-this-project" in output
        assert anywhere.left() == {"one", OTHER}
        theirs, third = tmp_path / "theirs", tmp_path / "third"
        anywhere.receipt("one", "mine", theirs)
        third.mkdir()
        anywhere.lock("two", folder=third)
        anywhere.send("two")
        anywhere.send("two", "again")
        assert anywhere.unused("--project", theirs) == {"two", "again"}
        both = ("--project", theirs, "--project", third)
        assert f"{theirs}/receipts/mine.json" in anywhere.gc("--all", *both)
        assert anywhere.unused(*both) == set()
        anywhere.gc("--delete", *both)
        assert anywhere.left() == {"one", OTHER, "two", "again"}
        anywhere.gc("--delete", "--project", theirs)
        assert anywhere.left() == {"one", OTHER}

    def test_a_branch_of_another_project(self, shared, tmp_path):
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        shared.lock("one", folder=theirs)
        shared.commit("branch", theirs)
        assert "dvc.lock of branch branch" in shared.gc("--all", "--project", theirs)
        assert shared.unused("--project", theirs) == set()

    def test_another_project_that_is_none(self, shared, tmp_path):
        (tmp_path / "empty").mkdir()
        assert f"nothing in {tmp_path}/empty refers to a feature set" in shared.gc("--project", tmp_path / "empty", status=1)
        assert f"there is no folder {tmp_path}/none" in shared.gc("--project", tmp_path / "none", status=1)

    def test_a_root_in_the_project(self, tmp_path, made, command, monkeypatch):
        shared = shared_at("sets", tmp_path, made, command, monkeypatch)
        shared.gc("--delete")
        assert shared.left() == {OTHER}

    def test_nothing_refers_to_anything(self, shared):
        shutil.rmtree("receipts")
        output = shared.gc("--delete", "--only-this-project", status=1)
        assert (
            "nothing here refers to any feature set (no receipt, no stub, no lock file), so all of them would be removed"
            in output
        )
        assert shared.left() == {"one", OTHER}

    @pytest.mark.parametrize("content", ["a: [", "- 5", "stages: {a: {outs: [{md5: x}]}}", "stages: [a]", "<<<<<<< ours\nx"])
    def test_a_lock_file_that_cannot_be_read(self, content, shared):
        shared.commit()
        Path("dvc.lock").write_text(content)
        assert "dvc.lock is not a readable lock file of DVC" in shared.gc("--delete", "--only-this-project", status=1)
        shared.commit("broken")
        assert not Path("dvc.lock").exists()
        output = shared.gc("--delete", "--only-this-project", status=1)
        assert "dvc.lock of branch broken is not a readable lock file of DVC" in output
        assert "mend it, or delete that branch" in output
        assert shared.left() == {"one", OTHER}

    def test_a_receipt_that_cannot_be_read(self, shared):
        Path("receipts/bad.json").write_text("{}")
        assert "receipts/bad.json is not a receipt" in shared.gc(status=1)
        shared.commit()
        Path(".gitignore").write_text("")
        shared.commit("broken")
        assert not Path("receipts").exists()
        assert "receipts/bad.json of branch broken is not a receipt of a feature set" in shared.gc(status=1)

    def test_a_stub_that_cannot_be_read(self, shared):
        file = shared.stub("two") / "zarr.json"
        file.write_text(file.read_text().replace('"key"', '"kye"', 1))
        assert "features/two" in shared.gc(status=1)

    def test_a_folder_that_may_not_be_looked_through(self, shared, monkeypatch):
        Path("closed").mkdir()
        scandir = os.scandir

        def refuse(path: Any = ".") -> Any:
            if Path(path).name == "closed":
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
        output = shared.gc(status=1)
        assert f"{shared.folder}/closed cannot be searched (Permission denied); it may refer to any feature set" in output

    def test_git_that_fails(self, shared, monkeypatch):
        shared.commit()
        Path(".git/HEAD").write_text("nonsense")
        output = shared.gc(status=1)
        assert f"fails in {shared.folder}, whose branches may refer to any feature set" in output
        monkeypatch.setattr("shutil.which", lambda name: None)
        assert "there is no git; install it" in shared.gc(status=1)

    def test_what_was_not_there_to_be_looked_at_is_said(self, shared):
        output = shared.gc()
        assert f"note: {shared.folder} is not in a git repository: only its present files count" in output
        assert f"note: {shared.folder} has no dvc.lock that names feature sets: only receipts and stubs count" in output
        shared.lock("one")
        shared.commit()
        assert "note:" not in shared.gc()


def test_where_it_looks(shared, command, tmp_path, monkeypatch):
    status, _, err = command("store", "gc")
    assert status == 1
    assert "there is no folder features, and no store.root" in err
    Path("params.yaml").write_text(json.dumps({"store": {"root": shared.root}}))
    assert "unused: 1 " in command("store", "gc", "--params", "params.yaml")[1]
    (tmp_path / "user.toml").write_text(f'[store]\nroot = "{shared.root}"\n')
    monkeypatch.setenv("BEYONDCLS_CONFIG", str(tmp_path / "user.toml"))
    assert "unused: 1 " in command("store", "gc")[1]
    assert command("store", "gc", "--root", "project")[0] == 1
    assert "unused: 1 " in command("store", "gc", shared.root)[1]
    status, _, err = command("store", "gc", "--root", "/")
    assert "store.root is '/', expected a folder or an address" in err
