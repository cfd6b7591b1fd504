"""Feature sets at a root that machines share: extracted, sent, probed and fetched through the command line."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from extract.datasets import open_images
from extract.encoders import load_encoder
from extract.run import extract
from store import FeatureStore, StoreError
from store.format.layout import KINDS
from store.format.unfinished import is_stub, write_stub
from store.moving.receipt import Receipt
from store.moving.transfer import upload
from store.places import place_at
from store.places.object_store import ObjectStore
from store.writing.claims import BusyError, alone
from tests import forked
from tests.extract.pictures import samples, write_tar
from tests.folders import files
from tests.pipelines.test_extract import ENCODER
from tests.s3 import ignoring_conditions, served
from tests.store.tiny import Tiny

N = 70
SETS = {"train": N, "test": 40}


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
    """A folder, or a folder of the object store's bucket."""
    if getattr(request, "param", "folder") == "folder":
        return str(tmp_path / "shared")
    return f"{request.getfixturevalue('server')}/{tmp_path.name}"


folder_and_s3 = pytest.mark.parametrize("root", ["folder", "s3"], indirect=True)
only_s3 = pytest.mark.parametrize("root", ["s3"], indirect=True)


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


@pytest.fixture
def beyondcls(command):
    """Exit status and what was said, line breaks of no meaning removed."""

    def run(*arguments: object) -> tuple[int, str]:
        status, out, err = command(*arguments)
        return status, " ".join((out + err).split())

    return run


def extraction(split: str = "train", *more: object) -> tuple[object, ...]:
    places = ("--data", f"data/{split}", "--out", f"features/tiny-{split}")
    return ("extract", "--params", "params.yaml", "--encoder", "tiny", *places, "--device", "cpu", *more)


def at(address: str) -> tuple[Any, str]:
    import fsspec

    fs, path = fsspec.core.url_to_fs(address)
    fs.invalidate_cache()
    return fs, path


def content(address: str) -> dict[str, bytes]:
    fs, path = at(address)
    return {name[len(path.rstrip("/")) + 1 :]: fs.cat_file(name) for name in fs.find(path)}


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


@folder_and_s3
def test_extraction(project, root, local, beyondcls, monkeypatch):
    address, whole, stub = address_of(root, "test", local), local / "features/tiny-test", project / "features/tiny-test"
    if "://" in root:
        monkeypatch.setattr("store.writing.writer.InFolder", None)  # nothing goes through the disk
    status, output = beyondcls(*extraction("test"))
    assert status == 0, output
    assert f"at {address}" in output
    assert content(address) == files(whole)
    assert files(stub) == {"zarr.json": (whole / "zarr.json").read_bytes()}
    assert {p.name for p in stub.iterdir()} == {"zarr.json", *KINDS}
    receipt = Receipt.read(project / "receipts/tiny-test.json")
    assert receipt.to_json() == Receipt.from_store(FeatureStore.open(whole)).to_json()
    assert {p.name for p in (project / "features").iterdir()} == {"tiny-test"}, "nothing else is left here"


@only_s3
def test_tasks_without_a_common_folder(project, root, local, tmp_path, beyondcls, monkeypatch):
    """The first to come does what the other has not begun; the other finds the set."""
    status, output = beyondcls(*extraction("test", "--task-id", 1, "--n-tasks", 2))
    assert status == 0, output
    monkeypatch.setattr("store.writing.writer.InObjectStore", None)
    shutil.copytree(project, elsewhere := tmp_path / "elsewhere", symlinks=True)
    shutil.rmtree(elsewhere / "features")
    shutil.rmtree(elsewhere / "receipts")
    monkeypatch.chdir(elsewhere)
    status, output = beyondcls(*extraction("test", "--task-id", 0, "--n-tasks", 2))
    assert status == 0, output
    assert content(address_of(root, "test", local)) == files(local / "features/tiny-test")
    for folder in ("features", "receipts"):
        assert files(project / folder).keys() == files(elsewhere / folder).keys()
    assert files(project / "features") == files(elsewhere / "features")


@folder_and_s3
def test_tasks_of_an_engine(project, root, local, beyondcls):
    """They write beside the set, or where it is sent from."""
    status, output = beyondcls(*extraction("test", "--on", "processes", "--tasks", 2))
    assert status == 0, output
    assert content(address_of(root, "test", local)) == files(local / "features/tiny-test")
    assert is_stub(project / "features/tiny-test")
    assert {p.name for p in (project / "features").iterdir()} == {"tiny-test", ".runs"}
    assert {p.name for p in (project / "features/.runs").iterdir()} == {"tiny-test.task0.log", "tiny-test.task1.log"}


def publish_often(folder: Path) -> None:
    for _ in range(100):
        with suppress(BusyError), alone(folder / "x", "x"):
            pass


def test_tasks_that_publish_at_the_same_moment(tmp_path):
    processes = [forked.start(publish_often, tmp_path) for _ in range(3)]
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0}
    assert not list(tmp_path.iterdir())


@only_s3
def test_a_set_that_takes_over_another_goes_through_the_disk(project, root, local, beyondcls, monkeypatch):
    monkeypatch.setattr("store.writing.writer.InObjectStore", None)
    status, output = beyondcls(*extraction("test", "--from", local / "features/tiny-test"))
    assert status == 0, output
    assert content(address_of(root, "test", local)) == files(local / "features/tiny-test")


def test_a_set_that_is_there_is_not_extracted_again(extracted, project, beyondcls, monkeypatch):
    """As when DVC has emptied the outs."""
    before, receipts = files(project / "features"), {name: Path(f"receipts/tiny-{name}.json").read_bytes() for name in SETS}
    shutil.rmtree("features")
    shutil.rmtree("receipts")
    monkeypatch.setattr("extract.writing.FeatureWriter", None)
    for split in SETS:
        assert beyondcls(*extraction(split))[0] == 0
    assert files(project / "features") == before
    assert {name: Path(f"receipts/tiny-{name}.json").read_bytes() for name in SETS} == receipts


def test_a_second_project_extracts_nothing(extracted, root, local, tmp_path, beyondcls, monkeypatch):
    """Another folder, other names of the encoder and of the folder of the same images, and a root that the user configured."""
    folder, file = tmp_path / "second", tmp_path / "beyondcls.toml"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_params(folder, None)
    (folder / "params.yaml").write_text((folder / "params.yaml").read_text().replace("tiny:", "mine:"))
    file.write_text(f'[store]\nroot = "{root}"\n')
    monkeypatch.setenv("BEYONDCLS_CONFIG", str(file))
    shutil.copytree(local / "data/test", "pictures")
    monkeypatch.setattr("extract.writing.FeatureWriter", None)
    places = ("--data", "pictures", "--out", "features/mine-pictures", "--device", "cpu")
    status, output = beyondcls("extract", "--params", "params.yaml", "--encoder", "mine", *places)
    assert status == 0, output
    assert f"features/mine-pictures: the set goes to {root} (store.root of {file})" in output
    assert f"nothing to extract: {extracted['test']} is this very set" in output
    assert f"at {extracted['test']}" in output
    assert is_stub(folder / "features/mine-pictures")
    assert {n.rpartition("-")[0] for n in place_at(root).names()} == {"tiny-train", "tiny-test"}, "no second copy"
    for params in ((), ("--params", "params.yaml")):
        status, output = beyondcls("attention", "--features", "features/mine-pictures", "--out", "attention", *params)
        assert status == 0, output
    assert beyondcls("store", "pull", "mine-pictures", "--to", "pulled")[0] == 0
    assert files(folder / "pulled") == files(local / "features/tiny-test")


def test_the_root_of_the_user(project, root, local, tmp_path, beyondcls, monkeypatch):
    """Also for commands without a parameter file; a project may insist on its own folder."""
    file = tmp_path / "beyondcls.toml"
    file.write_text(f'[store]\nroot = "{root}"\n')
    monkeypatch.setenv("BEYONDCLS_CONFIG", str(file))
    write_params(project, "project")
    status, output = beyondcls(*extraction("test"))
    assert status == 0, output
    assert files(project / "features/tiny-test") == files(local / "features/tiny-test")
    assert not Path(root).exists()
    write_params(project, None)
    status, output = beyondcls(*extraction("test"))
    assert status == 1
    assert f"features/tiny-test holds files, but feature sets go to {root} (store.root of {file})" in output
    assert "`store: { root: project }` in the parameter file" in output
    shutil.rmtree("features")
    model = ("--model", "vit_tiny_patch16_224", "--random-seed", 0, "--shard-rows", 32)
    status, output = beyondcls(
        "extract", "--encoder", "any", *model, "--data", "data/test", "--out", "features/any", "--device", "cpu"
    )
    assert status == 0, output
    assert is_stub(project / "features/any")
    key = Receipt.read("receipts/any.json").key
    assert FeatureStore.open(f"{root}/any-{key}").spec.key == key
    assert beyondcls("attention", "--features", "features/any", "--out", "attention")[0] == 0


def test_a_receipt_elsewhere_and_without_a_root(project, local, beyondcls):
    write_params(project, None)
    status, output = beyondcls(*extraction("test", "--receipt", "elsewhere/r.json"))
    assert status == 0, output
    assert files(project / "features/tiny-test") == files(local / "features/tiny-test")
    assert Receipt.read("elsewhere/r.json") == Receipt.from_store(FeatureStore.open("features/tiny-test"))
    assert not (project / "receipts").exists()
    assert [p.name for p in (project / "features").iterdir()] == ["tiny-test"]


@folder_and_s3
def test_a_deleted_object(extracted, project, beyondcls):
    fs, path = at(extracted["train"])
    name = "patch/block1/view0/c/1/0/0"
    whole = fs.cat_file(f"{path}/{name}")
    fs.rm(f"{path}/{name}")
    status, output = beyondcls(*extraction("train"))
    if extracted["train"].startswith("s3://"):  # what is missing is extracted and sent again
        assert status == 0, output
        assert f"{name} is missing" in output
    else:
        assert status == 1
        assert f"beyondcls store verify {extracted['train']}" in output
        repair = ("store", "repair", extracted["train"], "--data", "data/train", "--params", "params.yaml", "--encoder", "tiny")
        status, output = beyondcls(*repair, "--device", "cpu")
        assert status == 0, output
    assert fs.cat_file(f"{path}/{name}") == whole


class TestFetching:
    def test_pull(self, extracted, project, local, beyondcls):
        status, output = beyondcls("store", "pull", "tiny-train")
        assert (status, "there is no store.root to fetch tiny-train from; give --params FILE" in output) == (1, True)
        status, output = beyondcls("store", "pull", "tiny-train", "--params", "params.yaml", "--kinds", "images,cls")
        assert status == 0, output
        assert f"features/tiny-train: cls, images of {N} images; " in output
        assert f"s from {extracted['train']}" in output
        assert FeatureStore.open("features/tiny-train").kinds == ["cls", "images"]
        status, output = beyondcls("store", "pull", "receipts/tiny-train.json", "--params", "params.yaml")
        assert status == 0, output
        assert files(project / "features/tiny-train") == files(local / "features/tiny-train")
        status, output = beyondcls("store", "pull", extracted["test"], "--to", "there")
        assert status == 0, output
        assert files(project / "there") == files(local / "features/tiny-test")
        shutil.rmtree("features/tiny-test")
        assert beyondcls("store", "pull", extracted["test"])[0] == 0
        assert files(project / "features/tiny-test") == files(local / "features/tiny-test")

    @only_s3
    def test_push(self, project, root, local, beyondcls):
        shutil.copytree(local / "features", "features")
        status, output = beyondcls("store", "push", "features/tiny-test", "--params", "params.yaml")
        assert status == 0, output
        assert content(address_of(root, "test", local)) == files(local / "features/tiny-test")
        assert Receipt.read("receipts/tiny-test.json") == Receipt.from_store(FeatureStore.open("features/tiny-test"))
        assert not is_stub(project / "features/tiny-test")
        fs, path = at(address_of(root, "test", local))
        fs.rm(path, recursive=True)
        upload(FeatureStore.open("features/tiny-test"), address_of(root, "test", local).replace("tiny-test", "theirs"))
        status, output = beyondcls("store", "push", "features/tiny-test", "--params", "params.yaml")
        assert status == 0, output
        assert f"{root}/theirs-" in output
        assert not content(address_of(root, "test", local)), "what is there under another name is not sent again"
        status, output = beyondcls("store", "push", "features/tiny-test")
        assert status == 1
        assert "there is no store.root to copy features/tiny-test to; give --params FILE with it" in output


class TestLooking:
    @folder_and_s3
    def test_ls(self, extracted, project, root, beyondcls):
        status, output = beyondcls("store", "ls", "features")
        assert status == 0, output
        assert f"features/tiny-train tiny {N} stub float16" in output
        fs, path = at(f"{root}/half-{'0' * 32}/images/label/c/0")
        if "://" in root:
            fs.pipe_file(path, b"x")
            Tiny().begin(f"{root}/begun")
        status, output = beyondcls("store", "ls", root)
        assert status == 0, output
        assert f"{extracted['train']} tiny {N} attention,cls,patch,statistics float16" in output
        if "://" in root:
            assert f"damaged: {root}/half-{'0' * 32} is not a feature set: it has no zarr.json" in output
            begun = f"unfinished: {root}/begun is not a feature set: it has no zarr.json; it is being written, 0 of 2 units"
            assert begun in output

    def test_info_du_and_verify_of_a_stub(self, extracted, project, beyondcls):
        for command in ("info", "du"):
            status, output = beyondcls("store", command, "features/tiny-train", "--params", "params.yaml")
            assert status == 0, output
            assert "patch/block1/view0" in output
        status, output = beyondcls("store", "info", "features/tiny-train")
        assert status == 1
        assert "no store.root was given" in output
        status, output = beyondcls("store", "verify", "features/tiny-train")
        assert status == 1
        assert "features/tiny-train is a stub: its arrays are at store.root; give ROOT/tiny-train-" in output
        assert beyondcls("store", "verify", extracted["train"])[0] == 0


class TestChanging:
    @pytest.mark.parametrize("how", ["--extend", "--repair"])
    def test_what_is_at_the_root_stays_as_it_is(self, how, extracted, project, root, beyondcls):
        status, output = beyondcls(*extraction("train", how))
        assert status == 1
        assert (
            f"{how} changes a feature set in features/tiny-train, but its arrays are at {root} (store.root of params.yaml)"
            in output
        )
        assert "beyondcls store pull features/tiny-train --params FILE" in output

    @only_s3
    def test_fetched_extended_and_sent(self, extracted, project, root, beyondcls):
        assert beyondcls("store", "pull", "tiny-train", "--params", "params.yaml")[0] == 0
        status, output = beyondcls(*extraction("train", "--extend", "--blocks", "0"))
        assert status == 0, output
        extended = FeatureStore.open("features/tiny-train")
        assert extended.spec.blocks == (0, 1)
        assert beyondcls("store", "push", "features/tiny-train", "--params", "params.yaml")[0] == 0
        assert content(f"{root}/tiny-train-{extended.spec.key}") == files(project / "features/tiny-train")
        assert content(extracted["train"]), "the old one can still be read"

    def test_a_set_that_is_here_is_not_thrown_away(self, project, local, beyondcls):
        shutil.copytree(local / "features", "features")
        status, output = beyondcls(*extraction("train"))
        assert status == 1
        assert "features/tiny-train holds files, but feature sets go to" in output
        assert "beyondcls store push features/tiny-train" in output
        assert files(project / "features/tiny-train") == files(local / "features/tiny-train")


def test_a_stub_without_its_root(extracted, project, beyondcls):
    write_params(project, None)
    status, output = beyondcls(*extraction("train"))
    assert status == 1
    assert "features/tiny-train is a stub: its arrays are at a store.root; name that with --params, or remove" in output


def test_half_of_a_stub(project, root, local, beyondcls):
    """As a kill may leave it."""
    (project / "features/tiny-test/patch").mkdir(parents=True)
    (project / "features/tiny-test/zarr.json.partial").write_text("{")
    status, output = beyondcls(*extraction("test"))
    assert status == 0, output
    assert is_stub(project / "features/tiny-test")


def test_one_task_publishes(project, root, local, beyondcls):
    key = FeatureStore.open(local / "features/tiny-test").spec.key
    with alone(project / f"features/.upload/tiny-test-{key}", "features/tiny-test"):
        status, output = beyondcls(*extraction("test"))
    assert status == 0, output
    assert "features/tiny-test: another task puts it in its place" in output
    assert not (project / "features/tiny-test").exists()
    assert not (project / "receipts").exists()
    assert beyondcls(*extraction("test"))[0] == 0
    assert is_stub(project / "features/tiny-test")
    assert content(address_of(root, "test", local)) == files(local / "features/tiny-test")


@pytest.mark.parametrize("name", ["features/tiny-test/mine.txt", "receipts/tiny-test.json"])
def test_what_comes_while_the_set_is_extracted_stays(name, project, root, beyondcls, monkeypatch):
    mine = project / name

    def late(*arguments):
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("mine")
        return alone(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.sharing.publish.alone", late)
        status, output = beyondcls(*extraction("test"))
    assert status == 1, output
    assert mine.read_text() == "mine"
    assert not (project / "features/tiny-test/zarr.json").exists()
    mine.unlink()
    assert beyondcls(*extraction("test"))[0] == 0
    assert is_stub(project / "features/tiny-test")


@only_s3  # a folder is written without an upload
def test_an_upload_that_broke_off(project, root, local, beyondcls, monkeypatch):
    """After some files, and by a kill: tests/store/test_transfer.py. To a service that takes a set in no other way."""

    def away(*_):
        raise StoreError("away")

    with monkeypatch.context() as patch, ignoring_conditions():
        patch.setattr(ObjectStore, "put", away)
        status, output = beyondcls(*extraction("train"))
    assert status == 1
    assert "has no writing of a file only where there is none: the set is written to features/.upload first" in output
    assert not content(root), "nothing is left of the attempt"
    assert not (project / "features/tiny-train").exists()
    assert "not uploaded yet: features/.upload/tiny-train-" in beyondcls("store", "ls", "features")[1]
    status, output = beyondcls(*extraction("train"))
    assert status == 0, output
    assert content(address_of(root, "train", local)) == files(local / "features/tiny-train")
    assert {p.name for p in (project / "features").iterdir()} == {"tiny-train"}
