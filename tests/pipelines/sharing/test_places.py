"""What `--features` means: a set that is here, a stub, a receipt, an address; and what is said if nothing is to be had."""

import json
import shutil
import types
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from pipelines.sharing.places import Places, _disk_cache, open_features, receipt_of, set_and_receipt
from store import BeyondClsError, FeatureStore, StoreError
from store.format.unfinished import write_stub
from store.moving.receipt import Receipt
from store.moving.transfer import pull, upload
from tests.features import write_features


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> FeatureStore:
    """Not to be changed."""
    return write_features(tmp_path_factory.mktemp("made") / "one", 96)


@pytest.fixture(params=["memory", "folder"])
def project(request, whole, tmp_path, monkeypatch):
    """The folder of a project whose set `one` is at the root, with its stub and its receipt; and the set itself."""
    root = f"memory://{uuid.uuid4().hex}/sets" if request.param == "memory" else str(tmp_path / "root")
    upload(whole, f"{root}/one-{whole.spec.key}")
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_stub(Path("features/one"), (whole.path / "zarr.json").read_bytes())
    Receipt.from_store(whole).write(Path("receipts/one.json"))
    Path("params.yaml").write_text(json.dumps({"store": {"root": root, "cache": None}}))
    return types.SimpleNamespace(whole=whole, root=root, params=Path("params.yaml"), at=f"{root}/one-{whole.spec.key}")


def same(one: FeatureStore, other: FeatureStore) -> bool:
    assert one.arrays.keys() == other.arrays.keys()
    return all(np.array_equal(one.array(n).all(), other.array(n).all(), equal_nan=True) for n in other.arrays)


@pytest.mark.parametrize("path", ["features/one", "receipts/one.json", "features/../features/one/", None])
def test_from_the_root(path, project):
    store = open_features(path or project.at, project.params)
    assert store.where == project.at
    assert same(store, project.whole)


def test_a_set_that_is_here_is_read_here(project):
    shutil.rmtree("features/one")
    shutil.copytree(project.whole.path, "features/one")
    for params in (None, project.params):
        assert open_features("features/one", params).path == Path("features/one")
        assert open_features("receipts/one.json", params).path == Path("features/one")
    Path("receipts/one.json").write_text("nonsense")  # nothing needs it
    assert open_features(Path("features/one")).path == Path("features/one")


def test_kinds_that_are_here_are_read_here_and_others_at_the_root(project):
    pull(project.at, Path("features/one"), ["images", "cls"])
    store = open_features("features/one", project.params)
    assert {name: array.place.address() for name, array in store.arrays.items()} == {
        name: "features/one" if name.split("/")[0] in ("images", "cls") else project.at for name in project.whole.arrays
    }
    assert same(store, project.whole)
    Path("receipts/one.json").write_text("nonsense")  # nothing needs it
    alone = open_features("features/one")
    assert alone.kinds == ["cls", "images"]


def test_kinds_that_are_here_suffice_without_the_root(project, capsys):
    pull(project.at, Path("features/one"), ["images", "cls"])
    fs, root = fsspec.core.url_to_fs(project.at)
    fs.rm(root, recursive=True)
    assert open_features("features/one", project.params).kinds == ["cls", "images"]
    assert "is not a feature set: it has no zarr.json" in (said := capsys.readouterr().err)
    assert "what is in features/one is used alone" in said


@pytest.mark.parametrize(
    ("lost", "path"), [("features", "features/one"), ("features", "receipts/one.json"), ("receipts", "features/one")]
)
def test_a_receipt_or_a_stub_is_enough(lost, path, project):
    """As after `git clone`."""
    shutil.rmtree(lost)
    assert same(open_features(path, project.params), project.whole)


@pytest.mark.parametrize("path", ["features/one", "receipts/one.json"])
@pytest.mark.parametrize("params", [None, "no root"])
def test_nothing_is_to_be_had(path, params, project):
    file = None
    if params:
        file = project.params
        file.write_text("store: {root: null, cache: null}")
    key = project.whole.spec.key
    message = (
        rf"{path} names a feature set \(key {key}\) .*not in features/one, and no store.root was given.*dvc pull features/one"
    )
    with pytest.raises(StoreError, match=message):
        open_features(path, file)


def test_nothing_at_all(project):
    with pytest.raises(StoreError, match=r"features/two is not a feature set: it has no zarr\.json; name what"):
        open_features("features/two", project.params)
    with pytest.raises(StoreError, match=r"there is no receipt 'receipts/two\.json'.*dvc pull receipts/two\.json"):
        open_features("receipts/two.json", project.params)


def test_another_root(project, tmp_path):
    project.params.write_text(json.dumps({"store": {"root": str(tmp_path / "other")}}))
    other = f"{tmp_path}/other"
    with pytest.raises(StoreError, match=rf"{other} \(store\.root of params\.yaml\) .*{other}/one-\w+ is not a.*dvc pull"):
        open_features("features/one", project.params)


class TestUnderAnotherName:
    """Another project may have given the same set another name."""

    @pytest.fixture
    def renamed(self, project) -> str:
        fs, root = fsspec.core.url_to_fs(project.root)
        key = project.whole.spec.key
        fs.mv(f"{root}/one-{key}", f"{root}/theirs-{key}", recursive=True)
        return f"{project.root}/theirs-{key}"

    def test_is_found(self, project, renamed, tmp_path):
        other = write_features(tmp_path / "other", 96, seed=5)
        upload(other, f"{project.root}/one-{other.spec.key}")  # of this name, but another
        for path in ("features/one", "receipts/one.json"):
            store = open_features(path, project.params)
            assert store.where == renamed
            assert same(store, project.whole)
        shutil.rmtree("receipts")
        assert open_features("features/one", project.params).where == renamed, "a stub is enough"

    def test_the_own_name_goes_first(self, project, renamed):
        upload(project.whole, project.at)
        assert open_features("features/one", project.params).where == project.at

    @pytest.mark.parametrize("name", ["one", "aaa"])
    def test_one_that_is_unfinished_does_not_count(self, name, project, renamed):
        fs, root = fsspec.core.url_to_fs(project.root)
        fs.cp(
            f"{root}/theirs-{project.whole.spec.key}/images", f"{root}/{name}-{project.whole.spec.key}/images", recursive=True
        )
        assert open_features("features/one", project.params).where == renamed
        fs.rm(f"{root}/theirs-{project.whole.spec.key}/zarr.json")
        with pytest.raises(StoreError, match=rf"{project.at} is not a feature set: it has no zarr\.json"):
            open_features("features/one", project.params)

    @pytest.mark.parametrize("name", ["one", "aaa"])
    def test_one_that_is_damaged_gives_way(self, name, project, renamed):
        upload(project.whole, f"{project.root}/{name}-{project.whole.spec.key}")
        fs, root = fsspec.core.url_to_fs(project.root)
        fs.rm(f"{root}/{name}-{project.whole.spec.key}/patch", recursive=True)
        assert open_features("features/one", project.params).where == renamed

    def test_the_one_of_the_receipt_is_taken(self, project, renamed, tmp_path):
        again = write_features(tmp_path / "again", 96, signal=1.0)  # the same key, other bytes
        upload(again, f"{project.root}/again-{again.spec.key}")
        assert open_features("features/one", project.params).where == renamed

    def test_what_is_wrong_with_the_only_one_is_said(self, project, renamed):
        fs, root = fsspec.core.url_to_fs(renamed)
        fs.rm(f"{root}/patch", recursive=True)
        with pytest.raises(StoreError, match=rf"{renamed}/patch/block1/view0 is missing"):
            open_features("features/one", project.params)


def damage(project, name: str, content: bytes | None) -> None:
    fs, root = fsspec.core.url_to_fs(project.at)
    fs.rm(f"{root}/{name}")
    if content is not None:
        fs.pipe_file(f"{root}/{name}", content)


def test_a_deleted_shard_a_cut_one_and_a_deleted_kind(project):
    name = "patch/block1/view0/c/1/0/0"
    fs, root = fsspec.core.url_to_fs(project.at)
    before = fs.cat_file(f"{root}/{name}")
    damage(project, name, before[:-7])
    with pytest.raises(StoreError, match=rf"{name} has {len(before) - 7} bytes, expected {len(before)}.*dvc pull features/one"):
        open_features("features/one", project.params)
    damage(project, name, None)
    with pytest.raises(StoreError, match=rf"{name} is missing \(rows 64 to 95 of patch.*dvc pull features/one"):
        open_features("features/one", project.params)
    fs.rm(f"{root}/patch", recursive=True)
    with pytest.raises(StoreError, match=r"patch/block1/view0 is missing \(1 of 8 arrays are\)"):
        open_features("features/one", project.params)


def test_another_set_at_the_address(project, tmp_path):
    other = write_features(tmp_path / "other", 96, seed=5)
    again = write_features(tmp_path / "again", 96, signal=1.0)  # the same key, other bytes
    assert again.spec.key == project.whole.spec.key
    fs, root = fsspec.core.url_to_fs(project.at)
    for store, message in ((other, f"has key {other.spec.key}, expected {again.spec.key}"), (again, "computed again")):
        fs.rm(root, recursive=True)
        upload(store, project.at)
        with pytest.raises(StoreError, match=message):
            open_features("features/one", project.params)
    shutil.rmtree("receipts")
    with pytest.raises(StoreError, match=r"has the key of features/one, but another zarr\.json; extract it again"):
        open_features("features/one", project.params)


def test_a_stub_and_a_receipt_of_different_sets(project, tmp_path):
    other = write_features(tmp_path / "other", 96, seed=5)
    Receipt.from_store(other).write(Path("receipts/one.json"))
    with pytest.raises(StoreError, match=r"features/one is of the feature set \w+, receipts/one.json of another .*one commit"):
        open_features("features/one", project.params)
    upload(other, f"{project.root}/one-{other.spec.key}")
    assert open_features("receipts/one.json", project.params).spec.key == other.spec.key  # an old version, say


def test_an_edited_receipt(project):
    content = json.loads(Path("receipts/one.json").read_text())
    content["arrays"]["images/id"]["shards"][0]["xxh3_128"] = "0" * 32
    Path("receipts/one.json").write_text(json.dumps(content))
    with pytest.raises(StoreError, match="images/id/c/0/0 is not the shard of the receipt"):
        open_features("features/one", project.params)


def test_names():
    assert set_and_receipt("features/one") == (Path("features/one"), Path("receipts/one.json"))
    assert set_and_receipt("one") == (Path("one"), Path("../receipts/one.json"))
    assert set_and_receipt("/a/features/one/") == (Path("/a/features/one"), Path("/a/receipts/one.json"))
    assert set_and_receipt("x/receipts/one.json") == (Path("x/features/one"), Path("x/receipts/one.json"))
    assert set_and_receipt(".")[0] == Path.cwd()
    assert receipt_of(Path("scratch/sets/one.v2")) == Path("scratch/receipts/one.v2.json")


class TestParameters:
    def places(self, tmp_path: Path, values: Any) -> Places:
        (tmp_path / "p.yaml").write_text(json.dumps(values))
        return Places.from_params(tmp_path / "p.yaml")

    @pytest.mark.parametrize("values", [{}, {"store": None}, {"store": {}}, {"store": {"root": None, "cache": None}}])
    def test_nothing(self, values, tmp_path):
        assert self.places(tmp_path, values) == Places() == Places.from_params(None)

    def test_values(self, tmp_path):
        places = self.places(tmp_path, {"store": {"root": "s3://b/f/", "cache": {"folder": ".cache/features", "gb": 1.5}}})
        assert places == Places("s3://b/f", (Path.cwd() / ".cache/features", 1_500_000_000))
        assert places.address("one", "k") == "s3://b/f/one-k"
        assert places.shown == f"s3://b/f (store.root of {tmp_path}/p.yaml)"
        assert self.places(tmp_path, {"store": {"root": "~/sets/"}}).root == str(Path.home() / "sets")

    @pytest.mark.parametrize(
        ("store", "message"),
        [
            ({"roto": "x"}, "unknown parameter in store 'roto'; did you mean 'root'"),
            ({"root": 5}, "store.root is 5, expected a folder or an address"),
            ({"root": ""}, "store.root is '', expected a folder"),
            ({"root": "/"}, "store.root is '/', expected a folder"),
            ({"cache": 50}, "store.cache is 50, expected a folder and gb"),
            ({"cache": {"folder": "x", "gbs": 5}}, "unknown parameter in store.cache 'gbs'; did you mean 'gb'"),
            ({"cache": {"folder": "x"}}, "store.cache.gb is None, expected how many gigabytes"),
            ({"cache": {"folder": "x", "gb": 0}}, "store.cache.gb is 0, expected"),
            ({"cache": {"folder": "x", "gb": True}}, "store.cache.gb is True, expected"),
            ({"cache": {"folder": "x", "gb": "many"}}, "store.cache.gb is 'many', expected"),
            ({"cache": {"gb": 5}}, "store.cache.folder is None, expected a folder"),
        ],
    )
    def test_errors(self, store, message, tmp_path):
        with pytest.raises(BeyondClsError, match=message):
            self.places(tmp_path, {"store": store})

    def test_the_cache_is_given_to_sets_of_an_object_store_alone(self, tmp_path, monkeypatch):
        made, given = [], []

        class DiskCache:
            def __init__(self, folder: Path, nbytes: int):
                made.append((folder, nbytes))

        def record(path: Any, **options: Any) -> None:
            given.append((str(path), options.get("cache")))

        monkeypatch.setattr("pipelines.sharing.places.DiskCache", DiskCache)
        monkeypatch.setattr(FeatureStore, "open", record)
        _disk_cache.cache_clear()
        places = Places("s3://b", (Path("c"), 7))
        for address in ("s3://b/one", "s3://b/two", "/root/one"):
            places.open(address)
        _disk_cache.cache_clear()
        assert made == [(Path("c"), 7)]  # one, whose bytes they share
        assert [(path, isinstance(cache, DiskCache)) for path, cache in given] == [
            ("s3://b/one", True),
            ("s3://b/two", True),
            ("/root/one", False),
        ]
        assert given[0][1] is given[1][1]
