"""What `--features` means: a set that is here, a stub, a receipt, an address; and what is said if nothing is to be had."""

import json
import shutil
import types
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest

from pipelines.sharing.places import Places, _disk_cache, open_features, receipt_of, set_and_receipt
from store import BeyondClsError, FeatureStore, StoreError
from store.format.unfinished import write_stub
from store.moving.receipt import Receipt
from store.moving.transfer import pull, upload
from store.places import place_at
from tests.features import write_features


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> FeatureStore:
    """Not to be changed."""
    return write_features(tmp_path_factory.mktemp("made") / "one", 96)


@pytest.fixture
def project(request, whole, tmp_path, monkeypatch):
    """The folder of a project whose set `one` is at the root, with its stub and its receipt; and the set itself."""
    in_memory = getattr(request, "param", "memory") == "memory"
    root = f"memory://{uuid.uuid4().hex}/sets" if in_memory else str(tmp_path / "root")
    upload(whole, f"{root}/one-{whole.spec.key}")
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_stub(Path("features/one"), (whole.path / "zarr.json").read_bytes())
    Receipt.from_store(whole).write(Path("receipts/one.json"))
    Path("params.yaml").write_text(json.dumps({"store": {"root": root, "cache": None}}))
    return types.SimpleNamespace(whole=whole, root=root, params=Path("params.yaml"), at=f"{root}/one-{whole.spec.key}")


memory_and_folder = pytest.mark.parametrize("project", ["memory", "folder"], indirect=True)
SHARD = "patch/block1/view0/c/1/0/0"


def same(one: FeatureStore, other: FeatureStore) -> bool:
    assert one.arrays.keys() == other.arrays.keys()
    return all(np.array_equal(one.array(n).all(), other.array(n).all(), equal_nan=True) for n in other.arrays)


@memory_and_folder
@pytest.mark.parametrize("path", ["features/one", "receipts/one.json", None])
@pytest.mark.parametrize("lost", ["features", "receipts"])
def test_from_the_root(lost, path, project):
    """By the address, a receipt or a stub: one of them is enough, as after `git clone`."""
    if lost not in (path or ""):
        shutil.rmtree(lost)
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


def test_kinds_that_are_here_are_read_here_and_others_at_the_root(project, capsys):
    pull(project.at, Path("features/one"), ["images", "cls"])
    store = open_features("features/one", project.params)
    assert {name: array.place.address() for name, array in store.arrays.items()} == {
        name: "features/one" if name.split("/")[0] in ("images", "cls") else project.at for name in project.whole.arrays
    }
    assert same(store, project.whole)
    fs, root = fsspec.core.url_to_fs(project.at)
    fs.rm(root, recursive=True)
    assert open_features("features/one", project.params).kinds == ["cls", "images"]
    assert "zarr.json" in capsys.readouterr().err, "why it is used alone"
    Path("receipts/one.json").write_text("nonsense")  # nothing needs it
    assert open_features("features/one").kinds == ["cls", "images"]


@pytest.mark.parametrize("path", ["features/one", "receipts/one.json", "features/two"])
@pytest.mark.parametrize("root", [None, "", "other"])
def test_nothing_is_to_be_had(path, root, project):
    project.params.write_text(json.dumps({"store": {"root": root or None}}))
    remedy = r"other \(store.root of params.yaml\).*" if root else "--params.*"
    with pytest.raises(StoreError, match="two" if "two" in path else rf"{path} .*({remedy}|dvc pull features/one.*){{2}}"):
        open_features(path, None if root is None else project.params)


class TestUnderAnotherName:
    """Another project may have given the same set another name."""

    @pytest.fixture
    def renamed(self, project) -> str:
        fs, root = fsspec.core.url_to_fs(project.root)
        key = project.whole.spec.key
        fs.mv(f"{root}/one-{key}", f"{root}/theirs-{key}", recursive=True)
        return f"{project.root}/theirs-{key}"

    def test_is_found(self, project, renamed, tmp_path):
        for number, options in enumerate(({"seed": 5}, {"signal": 1.0})):  # another of this name; the same key, other bytes
            other = write_features(tmp_path / f"other{number}", 96, **options)
            upload(other, f"{project.root}/{('one', 'again')[number]}-{other.spec.key}")
        for path in ("features/one", "receipts/one.json"):
            assert (store := open_features(path, project.params)).where == renamed
            assert same(store, project.whole)
        shutil.rmtree("receipts")
        assert open_features("features/one", project.params).where in (renamed, renamed.replace("theirs", "again"))
        upload(project.whole, project.at)
        assert open_features("features/one", project.params).where == project.at, "the own name goes first"

    @pytest.mark.parametrize("name", ["one", "aaa"])
    @pytest.mark.parametrize("lost", ["zarr.json", "patch"])
    def test_one_that_is_unfinished_or_damaged_gives_way(self, name, lost, project, renamed):
        upload(project.whole, f"{project.root}/{name}-{project.whole.spec.key}")
        fs, root = fsspec.core.url_to_fs(project.root)
        fs.rm(f"{root}/{name}-{project.whole.spec.key}/{lost}", recursive=True)
        assert open_features("features/one", project.params).where == renamed
        fs.rm(f"{root}/theirs-{project.whole.spec.key}/patch", recursive=True)
        wrong = renamed if name == "aaa" or lost == "zarr.json" else project.at
        with pytest.raises(StoreError, match=f"{wrong}/patch/block1/view0"):
            open_features("features/one", project.params)


def edit_receipt(_):
    content = json.loads(Path("receipts/one.json").read_text())
    content["arrays"]["images/id"]["shards"][0]["xxh3_128"] = "0" * 32
    Path("receipts/one.json").write_text(json.dumps(content))


@memory_and_folder
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda place: place.put(SHARD, [b"x"], 1), SHARD),
        (lambda place: place.remove([SHARD]), SHARD),
        (lambda place: place.remove([name for name in place.sizes() if name.startswith("patch/")]), "1 of 8 arrays"),
        (edit_receipt, "images/id/c/0/0"),
    ],
    ids=["a shard that is cut", "one that is deleted", "a kind that is deleted", "a receipt that was edited"],
)
def test_a_set_that_is_not_what_its_receipt_says(change, message, project):
    change(place_at(project.at))
    if message == "1 of 8 arrays" and not project.at.startswith("memory://"):
        shutil.rmtree(f"{project.at}/patch")
    with pytest.raises(StoreError, match=message):
        open_features("features/one", project.params)


def test_other_sets(project, tmp_path):
    """At the address: another key, and the same key but other bytes. Then in the receipt."""
    other = write_features(tmp_path / "other", 96, seed=5)
    again = write_features(tmp_path / "again", 96, signal=1.0)
    assert again.spec.key == project.whole.spec.key
    fs, root = fsspec.core.url_to_fs(project.at)
    for store, message in ((other, f"has key {other.spec.key}"), (again, "different zarr.json")):
        fs.rm(root, recursive=True)
        upload(store, project.at)
        with pytest.raises(StoreError, match=message):
            open_features("features/one", project.params)
    shutil.rmtree("receipts")
    with pytest.raises(StoreError, match=r"another zarr\.json"):
        open_features("features/one", project.params)
    Receipt.from_store(other).write(Path("receipts/one.json"))
    with pytest.raises(StoreError, match=other.spec.key):
        open_features("features/one", project.params)
    upload(other, f"{project.root}/one-{other.spec.key}")
    assert open_features("receipts/one.json", project.params).spec.key == other.spec.key  # an old version, say


def test_names():
    assert set_and_receipt("features/one") == (Path("features/one"), Path("receipts/one.json"))
    assert set_and_receipt("one") == (Path("one"), Path("../receipts/one.json"))
    assert set_and_receipt("features/../features/one/")[1] == Path("receipts/one.json")
    assert set_and_receipt("/a/features/one/") == (Path("/a/features/one"), Path("/a/receipts/one.json"))
    assert set_and_receipt("x/receipts/one.json") == (Path("x/features/one"), Path("x/receipts/one.json"))
    assert set_and_receipt(".")[0] == Path.cwd()
    assert receipt_of(Path("scratch/sets/one.v2")) == Path("scratch/receipts/one.v2.json")


def test_parameters(tmp_path):
    assert Places.from_section({}) == Places.from_section({"root": None, "cache": None}) == Places() == Places.from_params(None)
    cache = {"folder": ".cache/features", "gb": 1.5}
    (tmp_path / "p.yaml").write_text(json.dumps({"store": {"root": "s3://b/f/", "cache": cache}}))
    places = Places.from_params(tmp_path / "p.yaml")
    assert places == Places("s3://b/f", (Path.cwd() / ".cache/features", 1_500_000_000))
    assert (places.address("one", "k"), places.source) == ("s3://b/f/one-k", tmp_path / "p.yaml")


@pytest.mark.parametrize(
    ("name", "store"),
    [
        ("'roto'", {"roto": "x"}),
        *(("store.root", {"root": root}) for root in (5, "/")),
        ("store.cache", {"cache": 50}),
        ("'gbs'", {"cache": {"folder": "x", "gbs": 5}}),
        *(("store.cache.gb", {"cache": {"folder": "x", "gb": gb}}) for gb in (None, 0, True, float("inf"))),
        ("store.cache.folder", {"cache": {"gb": 5}}),
    ],
)
def test_parameters_that_cannot_be(name, store):
    with pytest.raises(BeyondClsError, match=rf"{name}( is |; did you mean)"):
        Places.from_section(store)


@memory_and_folder
def test_the_cache_is_one_for_all_sets_of_an_object_store_and_of_no_other(project, tmp_path, whole):
    _disk_cache.cache_clear()
    other = write_features(tmp_path / "other", 96, seed=5)
    upload(other, f"{project.root}/two")
    places = Places(project.root, (tmp_path / "cache", 10**9))
    stores = [places.open(address) for address in (project.at, f"{project.root}/two")]
    for store in stores:
        store.array("patch/block1/view0").all()
    cached = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*") if file.is_file())
    assert (cached > 0) is project.root.startswith("memory://")
    assert _disk_cache.cache_info().currsize == int(project.root.startswith("memory://"))
    _disk_cache.cache_clear()
