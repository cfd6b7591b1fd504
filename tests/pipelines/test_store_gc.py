"""What names a feature set, and what `beyondcls store gc` keeps, removes and never touches; `ls` and `rm` of named ones."""

import errno
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fsspec
import pytest
import yaml
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.store import named, remove
from store import FeatureStore, StoreError
from store.format.unfinished import write_stub
from store.moving.receipt import Receipt
from store.moving.transfer import upload
from store.places import place_at
from store.writing.publishing import staging_of
from tests.features import write_features
from tests.folders import files
from tests.pipelines.test_store_tools import held
from tests.store.test_disk import refuse
from tests.store.test_writing import before_call

OTHER = "other"  # a set that is always named: where nothing is, nothing is removed
NOTHING = "no: nothing names it"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Three sets, each with a key of its own."""
    folder = tmp_path_factory.mktemp("made")
    for seed, name in enumerate(("one", "two", OTHER)):
        write_features(folder / name, 8, 4, 4, seed=seed)
    return folder


class Shared:
    """A project, and a root with the sets `one` and `other`; a receipt names `other`."""

    def __init__(self, root: str, made: Path, command: Callable[..., tuple[int, str, str]]):
        self.root, self.made, self.command = root, made, command
        self.keys = {name: FeatureStore.open(made / name).spec.key for name in ("one", "two", OTHER)}
        for name in ("one", OTHER):
            self.send(name)
        self.receipt(OTHER)

    def at(self, name: str) -> str:
        return f"{self.root}/{name}-{self.keys[name]}"

    def send(self, name: str) -> None:
        upload(FeatureStore.open(self.made / name), self.at(name))

    def receipt(self, name: str, called: str | None = None, folder: Path = Path()) -> None:
        Receipt.from_store(FeatureStore.open(self.made / name)).write(folder / f"receipts/{called or name}.json")

    def zarr(self, name: str) -> bytes:
        return (self.made / name / "zarr.json").read_bytes()

    def stub(self, name: str) -> None:
        write_stub(Path(f"features/{name}"), self.zarr(name))

    def copy(self, *names: str) -> None:
        for name in names:
            shutil.copytree(self.made / name, f"features/{name}")

    def lock(self, contents: dict[str, bytes | None], file: Path = Path("dvc.lock")) -> None:
        """A lock file with these outputs; None is a folder of unknown content."""
        digests = {path: f"{'0' * 32}.dir" if c is None else hashlib.md5(c).hexdigest() for path, c in contents.items()}
        outs = {"outs": [{"path": path, "hash": "md5", "md5": digest} for path, digest in digests.items()]}
        file.write_text(yaml.safe_dump(outs if file.suffix == ".dvc" else {"stages": {"extract": outs}}))

    def age(self, days: float) -> None:
        """As if the set `one` had been read last so many days ago, or written if it is in an object store."""
        fs, root = fsspec.core.url_to_fs(self.at("one"))
        for file in fs.find(root):
            if "://" in self.root:
                fs.store[file].created = fs.store[file].modified = datetime.now(UTC) - timedelta(days)
            else:
                os.utime(file, (time.time() - 86_400 * days, 0))

    def gc(self, *options: object, status: int = 0, place: str | None = None, days: int = 0) -> str:
        got, out, err = self.command("store", "gc", place or self.root, "--unused-for", days, *options)
        assert got == status, out + err
        return out + err

    def listed(self, *options: object, place: str | None = None, days: int = 0) -> dict[str, str]:
        """Names of sets, and why they are kept."""
        lines = (re.split(r" {2,}", line) for line in self.gc(*options, place=place, days=days).splitlines())
        rows = {row[0].rpartition("/")[2]: row[-1] for row in lines if len(row) > 3 and row[0] != "feature set"}
        return {re.sub("-[0-9a-f]{32}$", "", name): why for name, why in rows.items()}

    def unused(self, *options: object, place: str | None = None) -> set[str]:
        return {name for name, why in self.listed(*options, place=place).items() if why == NOTHING}

    def delete(self, *options: object, status: int = 0) -> str:
        return self.gc("--delete", "--project", ".", *options, status=status)

    def left(self) -> set[str]:
        return {name.rpartition("-")[0] for name in place_at(self.root).names() if not name.startswith(".")}


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    (folder := tmp_path / "project").mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def shared(project, made, command) -> Shared:
    return Shared(str(project.parent / "root"), made, command)


@pytest.fixture
def remote(project, made, command) -> Shared:
    return Shared(f"memory://{uuid.uuid4().hex}/sets", made, command)


@pytest.fixture(params=["shared", "remote"])
def anywhere(request) -> Shared:
    return request.getfixturevalue(request.param)


def test_what_nothing_names_goes(anywhere):
    assert anywhere.listed() == {"one": NOTHING, OTHER: "receipts/other.json"}
    assert anywhere.left() == {"one", OTHER}, "a dry run"
    user = "" if "://" in anywhere.root else f", made by {Path(anywhere.root).owner()}"
    assert f"removed {anywhere.at('one')}{user}\n" in anywhere.delete()
    assert anywhere.left() == {OTHER}
    assert FeatureStore.open(anywhere.at(OTHER)).arrays


def partial(shared: Shared) -> None:
    shared.copy("one")
    shutil.rmtree("features/one/patch")


@pytest.mark.parametrize(
    ("write", "file", "place"),
    [
        (lambda s: s.receipt("one", "called-otherwise"), "receipts/called-otherwise.json", None),
        (lambda s: s.stub("one"), "features/one/zarr.json", None),
        (partial, "features/one/zarr.json", None),
        (lambda s: s.lock({"features/mine/zarr.json": s.zarr("one"), "features/mine/patch": None}), "dvc.lock", None),
        (lambda s: s.lock({"features/mine/zarr.json": s.zarr("one")}, Path("branch")), "branch", "branch"),
        (lambda s: s.lock({"features/mine/zarr.json": s.zarr("one")}, Path("x.dvc")), "x.dvc", "x.dvc"),
        # Where a lock file does not tell the content, all sets of that name are kept.
        (lambda s: s.lock({"receipts/one.json": b"x"}), "dvc.lock", None),
        (lambda s: s.lock({"features": None}), "dvc.lock", None),
    ],
)
def test_what_names_a_set(write, file, place, shared):
    write(shared)
    assert shared.listed(*(("--project", place) if place else ()))["one"] == file
    if place:
        assert shared.unused() == {"one"}
    Path(file).unlink()
    Path("receipts/one.check.json").write_text("{}")  # what a sample was compared with is no receipt
    assert shared.unused() == {"one"}


def test_other_bytes_of_a_named_set_are_kept_and_its_old_versions_and_whole_copies_are_not(shared, tmp_path):
    again = write_features(tmp_path / "again", 8, 4, 4, seed=0, signal=1.0)
    upload(again, f"{shared.root}/again-{again.spec.key}")
    upload(FeatureStore.open(shared.made / "two"), f"{shared.root}/one-{shared.keys['two']}")
    shared.receipt("one")
    shared.copy("two")
    shared.lock({"features/one/zarr.json": shared.zarr("one"), "receipts/one.json": b"x", "features/one/patch": None})
    assert shared.listed()["again"] == "receipts/one.json"
    shared.delete()
    kept = {f"one-{shared.keys['one']}", f"again-{again.spec.key}", f"{OTHER}-{shared.keys[OTHER]}"}
    assert {name for name in place_at(shared.root).names() if not name.startswith(".")} == kept


def test_what_was_used_of_late_is_kept(anywhere):
    for days, is_kept in ((0, True), (6.9, True), (7.1, False)):
        anywhere.age(days)
        assert (anywhere.listed(days=7)["one"] != NOTHING) is is_kept
    assert anywhere.command("store", "gc", anywhere.root)[1].count(NOTHING) == 0, "30 days"


class TestFolder:
    def test_outs_and_receipts(self, shared):
        shared.copy("one", "two", OTHER)
        assert shared.unused(place="features") == {"one", "two"}
        shared.receipt("two")
        shared.lock({"features/one/zarr.json": b"changed since"})
        assert shared.unused(place="features") == set()
        Path("receipts/two.json").unlink()
        shared.gc("--delete", place="features")
        assert {p.name for p in Path("features").iterdir()} == {"one", OTHER}
        assert shared.left() == {"one", OTHER}, "the root was not looked at"

    def test_named_sets_are_shown_and_stay(self, shared, tmp_path):
        """`ls` and `rm`, of a set that this project's lock file names and of one that another's does."""
        shared.copy("one", "two", OTHER)
        shared.lock({"features/one/zarr.json": shared.zarr("one")})
        shared.lock({"features/mine/zarr.json": shared.zarr("two")}, Path("branch"))
        rows = [line.split() for line in shared.command("store", "ls", "--project", "branch")[1].splitlines()]
        shown = {row[0]: row[-1] for row in rows[1:]}
        assert (shown["features/one"], shown["features/two"]) == ("dvc.lock", "branch")
        remove = ("store", "rm", "--yes", "--project", "branch")
        assert [shared.command(*remove, f"features/{name}")[0] for name in ("one", "two")] == [1, 1]
        assert shared.command(*remove, "features/other")[0] == 0, "a receipt alone does not keep it"
        assert shared.command("store", "rm", "--yes", "features/two")[0] == 0
        assert shared.command(*remove, "features/one", "--force")[0] == 0
        assert list(Path("features").iterdir()) == []

    def test_stubs_stay(self, shared):
        shared.stub("one")
        assert shared.listed(place="features") == {}
        shared.delete()
        assert Path("features/one").is_dir()


class TestNeverTouched:
    def test_what_is_being_written(self, shared, monkeypatch):
        claims = held(staging_of(Path(shared.at("one")), "0" * 32))
        assert "one" not in shared.unused()
        with monkeypatch.context() as patch:  # as if it had begun after it was listed
            patch.setattr("pipelines.store.remove._why_kept", lambda one, *_: "" if "/one-" in one.address else "kept")
            shared.delete(status=1)
        assert shared.left() == {"one", OTHER}
        claims.close()
        shared.delete()
        assert shared.left() == {OTHER}

    def test_what_came_to_its_place_since_it_was_listed(self, anywhere, monkeypatch):
        place, zarr = place_at(anywhere.at("one")), anywhere.zarr("two")
        before_call(0, lambda: place.put("zarr.json", [zarr], len(zarr)), monkeypatch, remove, "naming")
        anywhere.delete(status=1)
        assert anywhere.left() == {"one", OTHER}

    def test_foreign_files(self, anywhere):
        place = place_at(anywhere.at("one"))
        place.put("notes.txt", [b"mine"], 4)
        assert "notes.txt" in anywhere.listed()["one"]
        anywhere.delete()
        assert anywhere.left() == {"one", OTHER}

    def test_what_does_not_look_like_ours(self, shared):
        shutil.copytree(shared.made / "two", f"{shared.root}/two")  # no key in its name: somebody put it there
        Path(f"{shared.root}/link-{shared.keys['two']}").symlink_to(shared.made / "two")
        Path(f"{shared.root}/results-{'0' * 32}").mkdir()
        before = files(Path(shared.root))
        shared.receipt("one")
        assert shared.listed().keys() == {"one", OTHER}
        shared.delete()
        assert files(Path(shared.root)) == before

    def test_an_upload_that_may_still_go_on(self, remote):
        place = place_at(remote.at("one"))
        place.remove(["zarr.json"])
        place.put(".writing/claims/0-0", [b"{}"], 2)  # tasks may be at work
        remote.age(0.9)
        assert "one" not in remote.unused()
        remote.age(1.1)
        assert remote.unused() == {"one"}
        remote.receipt("one")
        assert remote.unused() == set(), "its command goes on with it"

    def test_killed_half_way(self, remote, monkeypatch):
        """No reader takes what is left for a set, and the next command removes it."""
        with monkeypatch.context() as patch:
            before_call(1, lambda: refuse(errno.EIO), patch, MemoryFileSystem, "rm")
            remote.delete(status=1)
        with pytest.raises(StoreError):
            FeatureStore.open(remote.at("one"))
        remote.age(2)
        remote.delete()
        assert remote.left() == {OTHER}


class TestInDoubt:
    def test_other_projects(self, anywhere, tmp_path):
        anywhere.gc("--delete", status=1)
        assert anywhere.left() == {"one", OTHER}, "outside of this project"
        anywhere.receipt("one", "mine", theirs := tmp_path / "theirs")
        anywhere.send("two")
        assert anywhere.listed("--project", theirs)["one"] == "../theirs/receipts/mine.json"
        anywhere.gc("--delete", "--project", theirs)
        assert anywhere.left() == {"one", OTHER}

    def test_nothing_names_anything_or_another_project_is_none(self, shared, tmp_path):
        (tmp_path / "empty").mkdir()
        for options in (["--project", tmp_path / "empty"], ["--project", tmp_path / "none"]):
            shared.gc("--delete", *options, status=1)
        shutil.rmtree("receipts")
        shared.delete(status=1)
        assert shared.left() == {"one", OTHER}

    def test_files_that_cannot_be_read(self, shared):
        for file, content in (("dvc.lock", "<<<<<<< ours\nx"), ("receipts/bad.json", "{}")):
            Path(file).write_text(content)
            assert file in shared.delete(status=1)
            Path(file).unlink()
        shared.stub("two")
        file = Path("features/two/zarr.json")
        file.write_text(file.read_text().replace('"key"', '"kye"', 1))
        assert "features/two" in shared.delete(status=1)
        assert shared.left() == {"one", OTHER}


@given(content=st.text(max_size=40) | st.recursive(st.text() | st.integers(), st.lists, max_leaves=4).map(str))
@example(content="stages: {a: {outs: [{md5: x}]}}")
@example(content="stages: [a]")
@example(content="outs: {path: x}")
def test_a_lock_file_names_nothing_or_is_refused(content, tmp_path_factory):
    (file := tmp_path_factory.mktemp("lock") / "dvc.lock").write_text(content)
    with suppress(StoreError):
        assert named.named_in([file]) == {}


def test_where_it_looks(shared, command, tmp_path, monkeypatch):
    assert command("store", "gc", "features")[0] == 1, "there is no folder"
    Path("params.yaml").write_text(f"store: {{root: {shared.root}}}")
    assert command("store", "gc", "--unused-for", "0", "--params", "params.yaml")[1].count(NOTHING) == 1
    (tmp_path / "user.toml").write_text(f'[store]\nroot = "{shared.root}"\n')
    monkeypatch.setenv("BEYONDCLS_CONFIG", str(tmp_path / "user.toml"))
    shared.copy("two")
    for arguments, n in (((), 2), (("features",), 1), ((f"file://{shared.root}",), 1)):
        assert command("store", "gc", "--unused-for", "0", *arguments)[1].count(NOTHING) == n
