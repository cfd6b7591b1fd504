"""`beyondcls store …` through the command line: what it lists, mends, exchanges and removes, and what it refuses."""

import os
import re
import shlex
import shutil
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from webdataset import TarWriter

from extract.datasets import open_images
from pipelines import cli
from store import FeatureStore, FeatureWriter
from store.format.unfinished import CLAIMS, HEADER, UNNAMED
from store.places import LocalFolder
from store.writing.claims import Claims
from store.writing.publishing import staging_of
from tests.features import write_features
from tests.folders import files
from tests.pipelines.test_cli import TEST_TAR
from tests.store.conftest import edit, flip, put_at
from tests.store.test_writing import before_call

PATCH = "patch/block1/view0"


def staged(path: Path, n_units: int = 1) -> FeatureWriter:
    """A writer of a set at `path` that has written some units; the caller closes it."""
    whole = write_features(path.with_name("whole"))
    layouts = [array.layout for array in whole.arrays.values()]
    writer = FeatureWriter(path, whole.spec, layouts)
    for unit in range(n_units):
        rows = np.arange(*layouts[0].rows(unit))
        writer.write_unit(unit, {layout.name: whole.array(layout.name).stored(rows) for layout in layouts})
    shutil.rmtree(whole.path)
    return writer


def held(folder: Path) -> Claims:
    """A claim of this process in a folder, as writers hold it until it is closed."""
    claims = Claims(LocalFolder(folder))
    assert claims.take(0)
    return claims


def test_ls(command, tmp_path):
    """Sound, damaged and unfinished sets, and nothing else."""
    root = tmp_path / "features"
    store = write_features(root / "a/mae")
    write_features(root / "bad")
    flip(root / "bad/zarr.json", 300)
    write_features(root / "cut")
    (root / "cut" / PATCH / "c/1/0/0").unlink()
    (root / "other").mkdir()
    (root / "other/zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    with staged(root / "half") as writer:
        assert writer.claim(1)
        assert f"1 of 2 units done, being written by process {os.getpid()}" in command("store", "ls", root)[1]
    _, *lines = command("store", "ls", root)[1].splitlines()
    nbytes = sum(map(len, files(store.path).values()))
    row = [str(store.path), "encoder-w", "96", "attention,cls,patch,statistics", "float16", f"{nbytes / 1e3:.3g}", "kB"]
    assert lines[0].split() == [*row, store.spec.key[:8], date.today().isoformat()]
    assert [line.split()[:2] for line in lines[1:3]] == [[str(root / name), "damaged"] for name in ("bad", "cut")]
    for line, part in zip(lines[3:], ("bad/zarr.json", f"cut/{PATCH}/c/1/0/0", "1 of 2 units done, nobody"), strict=True):
        assert part in line
    (writer.staging / HEADER).write_bytes(b"[]")
    assert "damaged" in command("store", "ls", root)[1].splitlines()[-1]
    assert command("store", "ls", tmp_path / "none")[0] == 1


def test_info(command, tmp_path):
    store = write_features(tmp_path / "set")
    status, out, _ = command("store", "info", store.path)
    assert status == 0
    assert {store.spec.key, store.spec.encoder_key} <= set(re.split(r"[\s;]+", out))
    assert re.search(rf"{PATCH} +float16 +\[96, 9, 8\] +2 shards +13.8 kB", out)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    """A set of int8 tokens of two blocks, and the images it was made from: some of the quickstart's."""
    folder = tmp_path_factory.mktemp("made")
    (data := folder / "images").mkdir()
    shutil.copy(TEST_TAR / "classes.txt", data)
    with TarWriter(str(data / "000.tar")) as tar:
        for sample in open_images(str(TEST_TAR)).samples[:40]:
            tar.write({"__key__": sample.id, "png": sample.read(), "cls": sample.label})
    arguments = ["extract", "--encoder", "quickstart-random", "--data", data, "--out", folder / "set", "--blocks", "3,-1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["beyondcls", *map(str, arguments), "--dtype", "int8", "--shard-rows", "32"])
        with pytest.raises(SystemExit) as stop:
            cli.run()
    assert not stop.value.code
    return folder / "set", data


class TestVerify:
    def test_the_command_that_it_names_gives_the_same_bytes(self, command, made, tmp_path):
        """What else can be damaged is tested with extraction."""
        path, data = shutil.copytree(made[0], tmp_path / "se t"), made[1]
        flip(path / "patch/block3/view0-scale/c/1/0", 9)
        damaged = files(path)
        status, out, err = command("store", "verify", path)
        assert status == 1
        assert "patch/block3/view0-scale/c/1/0" in err
        assert files(path) == damaged
        (mending,) = (line for line in out.splitlines() if line.startswith("beyondcls extract --repair"))
        status, _, err = command(*shlex.split(mending.replace("IMAGES", shlex.quote(str(data))))[1:])
        assert status == 0, err
        assert files(path) == files(made[0])

    def test_what_a_set_describes_is_in_the_command(self, command, tmp_path):
        path = write_features(tmp_path / "set", maps=(), views=2).path
        edit(path, put_at("attributes", "beyondcls", "problems", ["é.jpg is no image"]))
        flip(path / PATCH / "c/0/0/0", 3)
        (path / "cls/block1/view0/c/1/0").unlink()
        status, out, err = command("store", "verify", path)
        assert (status, len(err.splitlines())) == (1, 2)
        *options, last = shlex.split(out.splitlines()[-1])[3:]
        assert last == "--no-maps"
        chosen = dict(zip(options[::2], options[1::2], strict=True))
        assert (chosen["--out"], chosen["--views"], chosen["--on-error"]) == (str(path), "2", "record")


def test_export_and_import(command, tmp_path, monkeypatch):
    """Every form is tested by the contract of exchanges."""
    store = write_features(tmp_path / "set")
    export = ("export", store.path, tmp_path / "x")
    assert "8 arrays of 96 images" in command("store", *export, "--to", "npy")[1]
    assert store.spec.key in command("store", "import", tmp_path / "x", tmp_path / "back")[1]
    assert files(tmp_path / "back") == files(store.path)
    assert command("store", "export", store.path, tmp_path / "part", "--to", "npy", "--arrays", f"{PATCH},images")[0] == 0
    monkeypatch.setitem(sys.modules, "h5py", None)
    before = files(tmp_path)
    for arguments, named in (
        (("import", tmp_path / "x", tmp_path / "back", "--from", "npy"), str(tmp_path / "back")),
        ((*export, "--to", "npy"), str(tmp_path / "x")),
        (("import", tmp_path / "part", tmp_path / "y"), "3 of its 8 arrays"),
        (("export", store.path, tmp_path / "y", "--to", "tar"), "'tar'"),
        (("export", store.path, tmp_path / "y", "--to", "npy", "--arrays", "pach"), "'pach'"),
        (("export", store.path, tmp_path / "y.h5", "--to", "hdf5"), "beyondcls[exchange]"),
    ):
        status, _, err = command("store", *arguments)
        assert (status, named in err) == (1, True), err
    assert files(tmp_path) == before


class TestRm:
    @pytest.fixture
    def path(self, tmp_path) -> Path:
        write_features(tmp_path / "features/set-more")
        return write_features(tmp_path / "features/set").path

    def left(self, path: Path) -> list[str]:
        return sorted(p.name for p in path.parent.iterdir())

    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: (path / "zarr.json").write_bytes(b""),
            lambda path: shutil.rmtree(path / "patch"),
            lambda path: (path / PATCH / "zarr.json.partial").write_bytes(b"x"),
        ],
        ids=["empty description", "no patch", "partial"],
    )
    def test_only_this_one_even_a_damaged_one(self, command, path, damage):
        damage(path)
        assert command("store", "rm", path, "-y")[:2] == (0, f"removed {path}, made by {path.parent.owner()}\n")
        assert self.left(path) == ["set-more"]

    @pytest.mark.parametrize("foreign", ["notes.txt", ".writing/x", "patch/block7/view0/zarr.json", "empty/"])
    def test_foreign_files_are_named(self, command, path, foreign):
        (path / foreign.rpartition("/")[0]).mkdir(parents=True, exist_ok=True)
        if not foreign.endswith("/"):
            (path / foreign).write_text("mine")
        before = files(path)
        assert f"{path}/{foreign.split('/')[0]}" in command("store", "rm", path, "--yes")[2]
        assert files(path) == before

    @pytest.mark.parametrize(("name", "content"), [("mine.txt", b"mine"), ("zarr.json", b"another set's")])
    def test_what_comes_while_it_is_removed(self, command, path, monkeypatch, name, content):
        """Looked for once more when nobody can find the set by its name any longer."""
        before_call(0, lambda: (path / name).write_bytes(content), monkeypatch, os, "rename")
        before = files(path)
        assert command("store", "rm", path, "--yes")[0] == 1
        assert files(path) == before | {name: content}

    def test_links_are_not_followed(self, command, path, tmp_path):
        (tmp_path / "link").symlink_to(path)
        shutil.move(path / "registers", tmp_path / "mine")
        (path / "registers").symlink_to(tmp_path / "mine")
        assert command("store", "rm", path, "--yes")[0] == 1
        (path / "registers").unlink()
        assert command("store", "rm", tmp_path / "link", "--yes")[0] == 1
        # A file that is a link, as data version control makes them, goes; what it leads to stays.
        shard = path / PATCH / "c/0/0/0"
        shard.rename(tmp_path / "cached")
        shard.symlink_to(tmp_path / "cached")
        assert command("store", "rm", path, "--yes")[0] == 0
        assert sorted(p.name for p in tmp_path.iterdir()) == ["cached", "features", "link", "mine"]

    def test_what_is_no_feature_set(self, command, path, tmp_path):
        (mine := path.parent / ".staging/mine").mkdir(parents=True)
        shutil.copytree(path, without := tmp_path / "without")
        (without / "zarr.json").unlink()
        before = sorted(tmp_path.rglob("*"))
        for target in (tmp_path, path / PATCH, path / "patch", path / "../none", path / "..", mine, without):
            assert command("store", "rm", target, "--yes")[0] == 1
        assert sorted(tmp_path.rglob("*")) == before

    def test_asks(self, command, path, monkeypatch):
        assert command("store", "rm", path)[0] == 1, "nobody is there"
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        asked = []
        for answer in (False, True):
            monkeypatch.setattr("typer.confirm", lambda text, answer=answer: asked.append(text) or answer)
            assert command("store", "rm", path)[0] == int(not answer)
            assert path.exists() is not answer
        assert all(part in text for text in asked for part in (str(path), "kB", path.parent.owner()))

    def test_not_while_it_is_written(self, command, path):
        """The set, or another at its place; the writer of another set is no matter."""
        other = held(staging_of(path.with_name(f"{path.name}-more"), "0" * 32))
        for key in (FeatureStore.open(path).spec.key, "0123456789abcdef" * 2):
            claims = held(staging_of(path, key))
            assert f"process {os.getpid()}" in command("store", "rm", path, "--yes")[2]
            assert command("store", "rm", staging_of(path, key), "--yes")[0] == 1
            claims.close()
        assert command("store", "rm", path, "--yes")[0] == 0
        other.close()

    def test_killed_half_way(self, command, path, monkeypatch):
        """No half set has its name; what is left is listed, and can be removed."""

        def killed(folder: Path, **options: object) -> None:
            (Path(folder) / "zarr.json").unlink()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", killed)
            command("store", "rm", path, "--yes")
        assert self.left(path) == [".staging", "set-more"]
        listed = command("store", "ls", path.parent)[1]
        assert "half removed" in listed
        (remedy,) = re.findall(r"beyondcls (store rm \S+)", listed)
        write_features(path)  # meanwhile, a new one
        assert command(*shlex.split(remedy), "--yes")[0] == 0
        assert self.left(path) == ["set", "set-more"]
        FeatureStore.open(path)

    def test_unfinished_work_goes_and_nothing_else(self, command, path):
        with staged(path.with_name("half")) as writer:
            (writer.staging / UNNAMED / "0.0123456789abcdef.partial").touch()
            (writer.staging / CLAIMS).mkdir(exist_ok=True)
            (writer.staging / CLAIMS / "1-3").write_text("{}")
            os.utime(writer.staging / CLAIMS / "1-3", (0, 0))
        shutil.copytree(writer.staging, taken := writer.staging.with_name(f"{writer.staging.name}.{'0' * 16}.publishing"))
        (writer.staging / "mine").write_text("keep")
        assert command("store", "rm", writer.staging, "--yes")[0] == 1
        (writer.staging / "mine").unlink()
        for folder in (writer.staging, taken):
            assert command("store", "rm", folder, "--yes")[0] == 0
        assert self.left(path) == ["set", "set-more"]
        FeatureStore.open(path)
