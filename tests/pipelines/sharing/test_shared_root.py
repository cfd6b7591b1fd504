"""Feature sets at a root that machines share: extracted, sent, probed and fetched through the command line."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from extract.datasets import open_images
from extract.encoders import load_encoder
from extract.run import extract
from pipelines.sharing import publish
from store import FeatureStore, StoreError
from store.format.layout import KINDS
from store.format.unfinished import is_stub, write_stub
from store.moving.receipt import Receipt
from store.moving.transfer import upload
from store.places import place_at
from store.places.disk import write_file
from store.places.object_store import ObjectStore
from store.writing.claims import BusyError, alone
from tests import forked
from tests.extract.pictures import samples, write_tar
from tests.folders import files
from tests.pipelines.test_extract import ENCODER
from tests.s3 import served
from tests.store.test_writing import before_call, content
from tests.store.tiny import Tiny

SETS = {"train": 40, "test": 33}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server's bucket."""
    with served("sets"):
        yield "s3://sets"


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    """The data, and the sets as they are without a root."""
    folder = tmp_path_factory.mktemp("local")
    for split, n in SETS.items():
        write_tar(folder / "data" / split / "0.tar", samples(n))
        (folder / "data" / split / "classes.txt").write_text("cat\ndog\nowl\nnewt\n")
        images, encoder = open_images(str(folder / "data" / split)), load_encoder("tiny", **ENCODER)
        extract(encoder, images, folder / f"features/tiny-{split}", shard_rows=32)
    return folder


@pytest.fixture
def root(request, tmp_path) -> str:
    """A folder, or a folder of an object store's bucket: in this process's memory, or on a server."""
    kind = getattr(request, "param", "folder")
    if kind == "folder":
        return str(tmp_path / "shared")
    return f"{request.getfixturevalue('server') if kind == 's3' else 'memory://sets'}/{tmp_path.name}"


only_object_store = pytest.mark.parametrize("root", ["memory"], indirect=True)


@pytest.fixture
def project(root, local, tmp_path, monkeypatch) -> Path:
    """A folder with parameters that name the root."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_params(folder, root)
    os.symlink(local / "data", folder / "data")
    return folder


def write_params(folder: Path, root: str | None) -> None:
    values = {"root": root, "cache": None}
    (folder / "params.yaml").write_text(
        f"encoders: {{tiny: {json.dumps(ENCODER)}}}\nextract: {{shard_rows: 32}}\nstore: {json.dumps(values)}\n"
        "probe: {epochs: 2, batch_size: 32, warmup_epochs: 0, seeds: [0]}\nheads: {abmilp: {}}\ncls_heads: {cls: {}}\n"
    )


def extraction(split: str = "train", *more: object) -> tuple[object, ...]:
    places = ("--data", f"data/{split}", "--out", f"features/tiny-{split}")
    return ("extract", "--params", "params.yaml", "--encoder", "tiny", *places, "--device", "cpu", *more)


def address_of(root: str, split: str, local: Path) -> str:
    return f"{root}/tiny-{split}-{FeatureStore.open(local / f'features/tiny-{split}').spec.key}"


@pytest.fixture
def extracted(project, root, local) -> dict[str, str]:
    """Both sets at the root, stubs and receipts here; the addresses."""
    for split in SETS:
        whole = FeatureStore.open(local / f"features/tiny-{split}")
        upload(whole, address_of(root, split, local))
        Receipt.from_store(whole).write(project / f"receipts/tiny-{split}.json")
        write_stub(project / f"features/tiny-{split}", (whole.path / "zarr.json").read_bytes())
    return {split: address_of(root, split, local) for split in SETS}


@pytest.mark.parametrize("root", ["folder", "s3"], indirect=True)
def test_extraction(project, root, local, beyondcls, monkeypatch):
    address, whole, stub = address_of(root, "test", local), local / "features/tiny-test", project / "features/tiny-test"
    if "://" in root:
        monkeypatch.setattr("store.writing.writer.InFolder", None)  # nothing goes through the disk
    assert f"at {address}" in beyondcls(*extraction("test"))
    assert content(address) == files(whole)
    assert files(stub) == {"zarr.json": (whole / "zarr.json").read_bytes()}
    assert {p.name for p in stub.iterdir()} == {"zarr.json", *KINDS}
    receipt = Receipt.read(project / "receipts/tiny-test.json")
    assert receipt.to_json() == Receipt.from_store(FeatureStore.open(whole)).to_json()
    assert {p.name for p in (project / "features").iterdir()} == {"tiny-test"}, "nothing else is left here"


@only_object_store
def test_tasks_without_a_common_folder(project, root, local, tmp_path, beyondcls, monkeypatch):
    """The first to come does what the other has not begun; the other finds the set."""
    beyondcls(*extraction("test", "--task-id", 1, "--n-tasks", 2))
    monkeypatch.setattr("store.writing.writer.InObjectStore", None)
    shutil.copytree(project, elsewhere := tmp_path / "elsewhere", symlinks=True)
    shutil.rmtree(elsewhere / "features")
    shutil.rmtree(elsewhere / "receipts")
    monkeypatch.chdir(elsewhere)
    beyondcls(*extraction("test", "--task-id", 0, "--n-tasks", 2))
    assert content(address_of(root, "test", local)) == files(local / "features/tiny-test")
    assert files(project / "receipts").keys() == files(elsewhere / "receipts").keys()
    assert files(project / "features") == files(elsewhere / "features")


@pytest.mark.parametrize("root", ["s3"], indirect=True)
def test_tasks_of_an_engine(project, root, local, beyondcls):
    """They write where the set is sent from."""
    beyondcls(*extraction("test", "--on", "processes", "--tasks", 2))
    assert content(address_of(root, "test", local)) == files(local / "features/tiny-test")
    assert is_stub(project / "features/tiny-test")
    assert {p.name for p in (project / "features").iterdir()} == {"tiny-test", ".runs"}
    assert {p.name for p in (project / "features/.runs").iterdir()} == {"tiny-test.task0.log", "tiny-test.task1.log"}


def publish_often(folder: Path) -> None:
    for _ in range(50):
        with suppress(BusyError), alone(folder / "x", "x"):
            pass


def test_tasks_that_publish_at_the_same_moment(tmp_path):
    processes = [forked.start(publish_often, tmp_path) for _ in range(3)]
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0}
    assert not list(tmp_path.iterdir())


@only_object_store
def test_a_set_that_takes_over_another_goes_through_the_disk(project, root, local, beyondcls, monkeypatch):
    monkeypatch.setattr("store.writing.writer.InObjectStore", None)
    beyondcls(*extraction("test", "--from", local / "features/tiny-test"))
    assert content(address_of(root, "test", local)) == files(local / "features/tiny-test")


@pytest.fixture
def of_user(root, tmp_path, monkeypatch) -> Path:
    """The user's configuration, which names the root."""
    (file := tmp_path / "beyondcls.toml").write_text(f'[store]\nroot = "{root}"\n')
    monkeypatch.setenv("BEYONDCLS_CONFIG", str(file))
    return file


def test_a_second_project_extracts_nothing(extracted, root, local, tmp_path, of_user, beyondcls, monkeypatch):
    """Another folder, other names of the encoder and of the folder of the same images, and a root that the user configured."""
    (folder := tmp_path / "second").mkdir()
    monkeypatch.chdir(folder)
    write_params(folder, None)
    (folder / "params.yaml").write_text((folder / "params.yaml").read_text().replace("tiny:", "mine:"))
    shutil.copytree(local / "data/test", "pictures")
    monkeypatch.setattr("extract.writing.FeatureWriter", None)
    places = ("--data", "pictures", "--out", "features/mine-pictures", "--device", "cpu")
    output = beyondcls("extract", "--params", "params.yaml", "--encoder", "mine", *places)
    assert f"{root} (store.root of {of_user})" in output
    assert extracted["test"] in output
    assert is_stub(folder / "features/mine-pictures")
    assert {n.rpartition("-")[0] for n in place_at(root).names()} == {"tiny-train", "tiny-test"}, "no second copy"
    beyondcls("attention", "--features", "features/mine-pictures", "--out", "attention")
    beyondcls("store", "pull", "mine-pictures", "--to", "pulled")
    assert files(folder / "pulled") == files(local / "features/tiny-test")


def test_the_root_of_the_user(project, root, local, of_user, beyondcls):
    """Also for commands without a parameter file; a project may insist on its own folder."""
    write_params(project, "project")
    beyondcls(*extraction("test"))
    assert files(project / "features/tiny-test") == files(local / "features/tiny-test")
    assert not Path(root).exists()
    write_params(project, None)
    output = beyondcls(*extraction("test"), fails=True)
    assert f"{root} (store.root of {of_user})" in output
    assert "store: { root: project }" in output
    shutil.rmtree("features")
    beyondcls("extract", "--encoder", "quickstart-random", "--data", "data/test", "--out", "features/any", "--device", "cpu")
    assert is_stub(project / "features/any")
    key = Receipt.read("receipts/any.json").key
    assert FeatureStore.open(f"{root}/any-{key}").spec.key == key


def test_a_receipt_elsewhere_and_without_a_root(project, local, beyondcls):
    write_params(project, None)
    beyondcls(*extraction("test", "--receipt", "elsewhere/r.json"))
    assert files(project / "features/tiny-test") == files(local / "features/tiny-test")
    assert Receipt.read("elsewhere/r.json") == Receipt.from_store(FeatureStore.open("features/tiny-test"))
    assert not (project / "receipts").exists()
    assert [p.name for p in (project / "features").iterdir()] == ["tiny-test"]


@pytest.mark.parametrize("root", ["folder", "memory"], indirect=True)
def test_a_deleted_object(extracted, project, beyondcls):
    place, name = place_at(extracted["train"]), "patch/block1/view0/c/1/0/0"
    whole = place.content_now(name)
    place.remove([name])
    if "://" in extracted["train"]:  # what is missing is extracted and sent again
        beyondcls(*extraction("train"))
    else:
        assert f"beyondcls store verify {extracted['train']}" in beyondcls(*extraction("train"), fails=True)
        shown = beyondcls("store", "verify", extracted["train"], fails=True)
        (mending,) = re.findall("beyondcls (extract --repair .*maps)", shown)
        given = mending.replace("IMAGES", "data/train").split()
        beyondcls(*given, "--params", "params.yaml", "--device", "cpu")
    assert place.content_now(name) == whole


class TestFetching:
    def test_pull(self, extracted, project, local, beyondcls):
        whole = {split: files(local / f"features/tiny-{split}") for split in SETS}
        beyondcls("store", "pull", "tiny-train", fails=True)
        beyondcls("store", "pull", "tiny-train", "--params", "params.yaml", "--kinds", "images,cls")
        assert FeatureStore.open("features/tiny-train").kinds == ["cls", "images"]
        beyondcls("store", "pull", "receipts/tiny-train.json", "--params", "params.yaml")
        assert files(project / "features/tiny-train") == whole["train"]
        shutil.rmtree("features/tiny-test")
        beyondcls("store", "pull", extracted["test"])
        assert files(project / "features/tiny-test") == whole["test"]

    @only_object_store
    def test_push(self, project, root, local, beyondcls):
        shutil.copytree(local / "features", "features")
        push, address = ("store", "push", "features/tiny-test"), address_of(root, "test", local)
        beyondcls(*push, "--params", "params.yaml")
        assert content(address) == files(local / "features/tiny-test")
        assert Receipt.read("receipts/tiny-test.json") == Receipt.from_store(FeatureStore.open("features/tiny-test"))
        assert not is_stub(project / "features/tiny-test")
        place_at(address).remove(list(content(address)))
        upload(FeatureStore.open("features/tiny-test"), address.replace("tiny-test", "theirs"))
        assert address.replace("tiny-test", "theirs") in beyondcls(*push, "--params", "params.yaml")
        assert not content(address), "what is there under another name is not sent again"
        beyondcls(*push, fails=True)


@only_object_store
def test_ls(extracted, project, root, beyondcls):
    assert "features/tiny-train tiny 40 stub float16" in beyondcls("store", "ls", "features")
    place_at(f"{root}/half-{'0' * 32}").put("images/label/c/0", [b"x"], 1)
    Tiny().begin(f"{root}/begun")
    output = beyondcls("store", "ls", root)
    today = datetime.now().date().isoformat()
    assert re.search(rf"{extracted['train']} tiny 40 attention,cls,patch,statistics float16 .*? {today} ", output)
    assert f"damaged: {root}/half-{'0' * 32}" in output
    assert re.search(f"unfinished: {root}/begun .*0 of 2 units", output)


def test_a_stub_is_described_at_the_root_and_verified_there(extracted, project, beyondcls):
    assert "patch/block1/view0" in beyondcls("store", "info", "features/tiny-train", "--params", "params.yaml")
    for command in ("info", "verify"):
        beyondcls("store", command, "features/tiny-train", fails=True)
    beyondcls("store", "verify", extracted["train"])


@only_object_store
def test_fetched_extended_and_sent(extracted, project, root, beyondcls):
    beyondcls("store", "pull", "tiny-train", "--params", "params.yaml")
    beyondcls(*extraction("train", "--extend", "--blocks", "0"))
    extended = FeatureStore.open("features/tiny-train")
    assert extended.spec.blocks == (0, 1)
    beyondcls("store", "push", "features/tiny-train", "--params", "params.yaml")
    assert content(f"{root}/tiny-train-{extended.spec.key}") == files(project / "features/tiny-train")
    assert content(extracted["train"]), "the old one can still be read"


@pytest.mark.parametrize(
    ("here", "options", "named"),
    [
        ("a stub", ["--extend"], "--extend"),
        ("a stub", ["--repair"], "--repair"),
        ("a set", [], "beyondcls store push features/tiny-train"),
        ("a stub without its root", [], "store.root"),
    ],
)
def test_what_is_here_and_at_the_root_stays_as_it_is(here, options, named, extracted, project, root, local, beyondcls):
    if here == "a set":
        shutil.rmtree("features")
        shutil.copytree(local / "features", "features")
    if here == "a stub without its root":
        write_params(project, None)
    before = content(root), files(project / "features/tiny-train")
    assert named in beyondcls(*extraction("train", *options), fails=True)
    assert (content(root), files(project / "features/tiny-train")) == before


def test_half_of_a_stub(project, beyondcls):
    """As a kill may leave it."""
    (project / "features/tiny-test/patch").mkdir(parents=True)
    (project / "features/tiny-test/zarr.json.partial").write_text("{")
    beyondcls(*extraction("test"))
    assert is_stub(project / "features/tiny-test")


def test_one_task_publishes(project, root, local, beyondcls):
    key = FeatureStore.open(local / "features/tiny-test").spec.key
    with alone(project / f"features/.upload/tiny-test-{key}", "features/tiny-test"):
        beyondcls(*extraction("test"))
    assert not (project / "features/tiny-test").exists()
    assert not (project / "receipts").exists()
    beyondcls(*extraction("test"))
    assert is_stub(project / "features/tiny-test")
    assert content(address_of(root, "test", local)) == files(local / "features/tiny-test")


@pytest.mark.parametrize("name", ["features/tiny-test/mine.txt", "receipts/tiny-test.json"])
def test_what_comes_while_the_set_is_extracted_stays(name, project, root, beyondcls, monkeypatch):
    mine = project / name
    with monkeypatch.context() as patch:
        before_call(0, lambda: write_file(mine, [b"mine"]), patch, publish, "alone")
        beyondcls(*extraction("test"), fails=True)
    assert mine.read_text() == "mine"
    assert not (project / "features/tiny-test/zarr.json").exists()
    mine.unlink()
    beyondcls(*extraction("test"))
    assert is_stub(project / "features/tiny-test")


@only_object_store  # a folder is written without an upload
def test_an_upload_that_broke_off(project, root, local, beyondcls, monkeypatch):
    """After some files, and by a kill: tests/store/test_transfer.py. To a service that takes a set in no other way."""
    real = MemoryFileSystem.pipe_file
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, value, **_: real(self, path, value))
        patch.setattr(ObjectStore, "put", Mock(side_effect=StoreError("away")))
        assert "features/.upload" in beyondcls(*extraction("train"), fails=True)
    assert not content(root), "nothing is left of the attempt"
    assert not (project / "features/tiny-train").exists()
    assert "features/.upload/tiny-train-" in beyondcls("store", "ls", "features")
    beyondcls(*extraction("train"))
    assert content(address_of(root, "train", local)) == files(local / "features/tiny-train")
    assert {p.name for p in (project / "features").iterdir()} == {"tiny-train"}
