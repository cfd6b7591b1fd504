"""`beyondcls store …` through the command line: what it lists, mends, exchanges and removes, and what it refuses."""

import json
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


class TestLs:
    def test_sound_damaged_and_unfinished(self, command, tmp_path):
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
            status, out, _ = command("store", "ls", root)
            assert status == 0
            assert re.search(rf"unfinished: .*half-{writer.spec.key} .*: 1 of 2 units done, being written by process \d+", out)
        lines = command("store", "ls", root)[1].splitlines()
        assert lines[0].split()[1:] == ["set", "encoder", "images", "kinds", "dtype", "bytes", "key", "used", "named", "by"]
        nbytes = sum(map(len, files(store.path).values()))
        row = [str(store.path), "encoder-w", "96", "attention,cls,patch,statistics", "float16", f"{nbytes / 1e3:.3g}", "kB"]
        assert lines[1].split() == [*row, store.spec.key[:8], date.today().isoformat()]
        assert [line.split()[:2] for line in lines[2:4]] == [[str(root / name), "damaged"] for name in ("bad", "cut")]
        assert lines[4].startswith(f"damaged: {root}/bad/zarr.json")
        assert f"{root}/cut/{PATCH}/c/1/0/0 is missing" in lines[5]
        assert "1 of 2 units done, nobody writes it; give its command again, or: beyondcls store rm --staging" in lines[6]
        assert len(lines) == 7

    def test_nothing_and_any_header(self, command, tmp_path):
        assert command("store", "ls", tmp_path)[1] == f"no feature sets below {tmp_path}\n"
        status, _, err = command("store", "ls", tmp_path / "none")
        assert (status, f"there is no folder {tmp_path / 'none'}" in err) == (1, True)
        with staged(tmp_path / "half") as writer:
            pass
        for content in (b"", b"x", b"[]", b'{"arrays": {"a": [[8], "int64", 0, null]}}'):
            (writer.staging / HEADER).write_bytes(content)
            assert "its header is damaged; nobody writes it" in command("store", "ls", tmp_path)[1]


class TestInfoAndDu:
    def test_info(self, command, tmp_path):
        store = write_features(tmp_path / "set")
        status, out, _ = command("store", "info", store.path)
        assert status == 0
        nbytes = sum(map(len, files(store.path).values()))
        for part in (store.spec.key, store.spec.encoder_key, f"{nbytes / 1e3:.3g} kB", "0 invalid images", "transform: "):
            assert part in out
        assert re.search(rf"{PATCH} +float16 +\[96, 9, 8\] +2 shards +13.8 kB", out)

    @pytest.mark.parametrize("dtype", ["float16", "int8"])
    def test_du_adds_up_to_the_disk(self, command, made, tmp_path, dtype):
        path = made[0] if dtype == "int8" else write_features(tmp_path / "set").path
        status, out, _ = command("store", "du", path)
        assert status == 0
        rows = [re.split(r"  +", line) for line in out.splitlines()][1:]
        sizes = {name: [int(n.replace(",", "")) for n in columns[:4]] for name, *columns in rows}
        assert sizes["total"][3] == sum(map(len, files(path).values()))
        for name, (value_nbytes, scales, overhead, nbytes) in sizes.items():
            assert value_nbytes + scales + overhead == nbytes
            if name not in ("total", "description of the set"):
                assert nbytes == sum(len(c) for f, c in files(path).items() if f.startswith((f"{name}/", f"{name}-scale/")))
        ordered = [columns[3] for name, columns in sizes.items() if name not in ("total", "description of the set")]
        assert ordered == sorted(ordered, reverse=True)
        if dtype == "int8":
            assert sizes["patch/block5/view0"][:2] == [40 * 64 * 192, 40 * 64 * 4]


def images(folder: Path, n: int = 40) -> Path:
    """Some of the quickstart's images."""
    out = folder / "images"
    out.mkdir()
    with TarWriter(str(out / "000.tar")) as tar:
        for sample in open_images(str(TEST_TAR)).samples[:n]:
            tar.write({"__key__": sample.id, "png": sample.read(), "cls": sample.label})
    shutil.copy(TEST_TAR / "classes.txt", out)
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    """A set of int8 tokens of two blocks, and the images it was made from."""
    folder = tmp_path_factory.mktemp("made")
    data = images(folder)
    arguments = ["extract", "--encoder", "quickstart-random", "--data", data, "--out", folder / "set", "--blocks", "3,-1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["beyondcls", *map(str, arguments), "--dtype", "int8", "--shard-rows", "32"])
        with pytest.raises(SystemExit) as stop:
            cli.run()
    assert not stop.value.code
    return folder / "set", data


class TestRepair:
    @pytest.mark.parametrize("by_command", [False, True])
    def test_gives_the_same_bytes(self, command, made, tmp_path, by_command):
        """By --data, or by the command that it prints; what else can be damaged is tested with extraction."""
        path, data = shutil.copytree(made[0], tmp_path / "se t"), made[1]
        flip(path / "patch/block3/view0-scale/c/1/0", 9)
        damaged = files(path)
        status, out, _ = command("store", "repair", path)
        assert status == 1
        assert files(path) == damaged
        (mending,) = (line for line in out.splitlines() if line.startswith("beyondcls extract --repair"))
        if by_command:
            status, out, err = command(*shlex.split(mending.replace("IMAGES", shlex.quote(str(data))))[1:])
        else:
            status, out, err = command("store", "repair", path, "--data", data)
            assert f"{path}: sound, and the same bytes as before" in out
        assert status == 0, err
        assert files(path) == files(made[0])

    def test_nothing_to_do(self, command, made, tmp_path):
        status, out, _ = command("store", "repair", made[0])
        assert (status, "nothing is damaged" in out) == (0, True)
        status, _, err = command("store", "repair", tmp_path)
        assert (status, "is not a feature set" in err) == (1, True)

    def test_what_was_asked_for_stands_in_the_command(self, command, tmp_path):
        path = write_features(tmp_path / "set", maps=()).path
        edit(path, put_at("attributes", "beyondcls", "problems", ["é.jpg is no image"]))
        flip(path / PATCH / "c/0/0/0", 3)
        chosen = ("--checkpoint", "w.pth", "--checkpoint-key", "teacher", "--checkpoint-prefix", "net.", "--ignore", "a.*,b")
        output = command("store", "repair", path, "--form", "cub", "--split", "test", *chosen)[1]
        assert shlex.join(chosen) in output
        assert "--split test" in output
        assert "--no-maps" in output
        assert "--on-error record" in output


class TestVerify:
    def test_sound_and_damaged(self, command, tmp_path):
        path = write_features(tmp_path / "set").path
        assert command("store", "verify", path)[0] == 0
        flip(path / PATCH / "c/0/0/0", 3)
        (path / "cls/block1/view0/c/1/0").unlink()
        status, out, err = command("store", "verify", path)
        assert status == 1
        assert "2 damaged shards" in out
        assert "c/0/0/0 is damaged" in err
        assert "c/1/0 is missing" in err
        assert f"beyondcls store repair {path}" in err

    def test_a_copy_without_a_kind(self, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # a short name leaves room for the numbers of the bar
        shutil.rmtree(write_features(tmp_path / "set").path / "patch")
        status, out, _ = command("store", "verify", "set")
        assert status == 0
        assert re.search(r"7/7 ", out)


class TestExchange:
    def test_there_and_back(self, command, tmp_path):
        """Every form is tested by the contract of exchanges."""
        form, name = "npy", "exported"
        store = write_features(tmp_path / "set")
        status, out, err = command("store", "export", store.path, tmp_path / name, "--to", form)
        assert status == 0, err
        assert f"{tmp_path / name}: 8 arrays of 96 images" in out
        assert "cannot be imported" not in out
        status, out, err = command("store", "import", tmp_path / name, tmp_path / "back")
        assert status == 0, err
        assert store.spec.key in out
        assert files(tmp_path / "back") == files(store.path)
        assert "already holds files" in command("store", "import", tmp_path / name, tmp_path / "back", "--from", form)[2]
        assert "already exists" in command("store", "export", store.path, tmp_path / name, "--to", form)[2]

    def test_options_and_a_package_that_is_not_installed(self, command, tmp_path, monkeypatch):
        store = write_features(tmp_path / "set")
        export = ("export", store.path, tmp_path / "x")
        status, out, _ = command("store", *export, "--to", "webdataset", "--tar-rows", "10", "--arrays", f"{PATCH},images")
        assert status == 0
        assert "5 arrays of 96 images" in out
        assert "without 3 arrays it cannot be imported again" in out
        assert len(list((tmp_path / "x").glob("*.tar"))) == 7 + 4
        command("store", "export", store.path, tmp_path / "x.h5", "--to", "hdf5")
        monkeypatch.setitem(sys.modules, "h5py", None)
        for arguments, message in (
            (("import", tmp_path / "x", tmp_path / "y"), "it lacks 3 of its 8 arrays"),
            ((*export, "--to", "tar"), "unknown form of exchange 'tar'"),
            ((*export, "--to", "npy", "--tar-rows", "10"), "--tar-rows is for --to webdataset"),
            ((*export, "--to", "npy", "--arrays", "pach"), "has no 'pach'"),
            (("import", store.path, tmp_path / "y"), "name its form with --from"),
            (("export", store.path, tmp_path / "y.h5", "--to", "hdf5"), "needs h5py, .*; pip install 'beyondcls[exchange]'"),
            (("import", tmp_path / "x.h5", tmp_path / "y"), "needs h5py, .*; pip install 'beyondcls[exchange]'"),
        ):
            status, _, err = command("store", *arguments)
            assert status == 1
            assert all(part in err for part in message.split(".*"))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["set", "x", "x.h5"]


class TestRm:
    @pytest.fixture
    def path(self, tmp_path) -> Path:
        write_features(tmp_path / "features/set-more")
        return write_features(tmp_path / "features/set").path

    def left(self, path: Path) -> list[str]:
        return sorted(p.name for p in path.parent.iterdir())

    def test_only_this_one(self, command, path):
        status, out, err = command("store", "rm", path, "--yes")
        assert status == 0, err
        assert out == f"removed {path}\n"
        assert self.left(path) == ["set-more"]

    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: flip(path / "zarr.json", 300),
            lambda path: flip(path / PATCH / "c/0/0/0", 0),
            lambda path: (path / "zarr.json").write_bytes(b""),
            lambda path: shutil.rmtree(path / "patch"),
            lambda path: (path / PATCH / "zarr.json.partial").write_bytes(b"x"),
        ],
        ids=["description", "shard", "empty description", "no patch", "partial"],
    )
    def test_damaged_ones_too(self, command, path, damage):
        damage(path)
        assert command("store", "rm", path, "-y")[0] == 0
        assert self.left(path) == ["set-more"]

    @pytest.mark.parametrize(
        "foreign",
        ["notes.txt", ".writing/x", "patch/x.npy", "patch/block7/view0/zarr.json", "images/c/0/0/x", ".git/x", "empty/"],
    )
    def test_foreign_files_are_named(self, command, path, foreign):
        (path / foreign.rpartition("/")[0]).mkdir(parents=True, exist_ok=True)
        if not foreign.endswith("/"):
            (path / foreign).write_text("mine")
        before = files(path)
        err = command("store", "rm", path, "--yes")[2]
        assert f"{path}/{foreign.split('/')[0]}" in err
        assert "does not belong to a feature set; move it away first" in err
        assert files(path) == before

    def test_what_comes_while_it_is_removed(self, command, path, monkeypatch):
        """Looked for once more when nobody can find the set by its name any longer."""
        rename = os.rename

        def late(source, target):
            if Path(source) == path:
                (path / "mine.txt").write_text("mine")
            rename(source, target)

        monkeypatch.setattr(os, "rename", late)
        before = files(path)
        assert f"{path}/mine.txt does not belong to a feature set" in command("store", "rm", path, "--yes")[2]
        assert files(path) == before | {"mine.txt": b"mine"}

    def test_links_are_not_followed(self, command, path, tmp_path):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine/zarr.json").write_text("keep")
        (path / "registers").rename(tmp_path / "registers") if (path / "registers").exists() else None
        (path / "registers").symlink_to(tmp_path / "mine")
        assert "does not belong" in command("store", "rm", path, "--yes")[2]
        (path / "registers").unlink()
        (tmp_path / "link").symlink_to(path)
        assert "is a link to" in command("store", "rm", tmp_path / "link", "--yes")[2]
        # A file that is a link, as data version control makes them, goes; what it leads to stays.
        shard = path / PATCH / "c/0/0/0"
        shard.rename(tmp_path / "cached")
        shard.symlink_to(tmp_path / "cached")
        assert command("store", "rm", path, "--yes")[0] == 0
        assert (tmp_path / "cached").exists()
        assert (tmp_path / "mine/zarr.json").exists()

    def test_what_is_no_feature_set(self, command, path, tmp_path):
        (other := tmp_path / "other").mkdir()
        (other / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"other": 1}}))
        for target in (tmp_path, path / PATCH, path / "patch", path / "../none", path / "..", other):
            status, _, err = command("store", "rm", target, "--yes")
            assert (status, "is not a feature set" in err or "there is no folder" in err) == (1, True)
        assert self.left(path) == ["set", "set-more"]
        FeatureStore.open(path)
        assert (other / "zarr.json").exists()

    def test_asks(self, command, path, monkeypatch):
        status, _, err = command("store", "rm", path)
        assert status == 1
        assert "give --yes" in err
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        asked = []
        for answer in (False, True):
            monkeypatch.setattr("typer.confirm", lambda text, answer=answer: asked.append(text) or answer)
            status, out, _ = command("store", "rm", path)
            assert (status, out) == ((0, f"removed {path}\n") if answer else (1, "nothing was removed\n"))
            assert path.exists() is not answer
        assert all(str(path) in text and "kB" in text for text in asked)

    def test_not_while_it_is_written(self, command, path):
        """The set, or another at its place; the writer of another set is no matter."""
        other = held(staging_of(path.with_name(f"{path.name}-more"), "0" * 32))
        for key in (FeatureStore.open(path).spec.key, "0123456789abcdef" * 2):
            claims = held(staging_of(path, key))
            assert f"{path} is being written by process {os.getpid()}" in command("store", "rm", path, "--yes")[2]
            claims.close()
        assert command("store", "rm", path, "--yes")[0] == 0
        other.close()

    def test_killed_half_way(self, command, path, monkeypatch):
        """No half set has its name; what is left is listed, and can be removed."""
        rmtree = shutil.rmtree

        def killed(folder: Path, **options: object) -> None:
            if Path(folder).exists():
                (Path(folder) / "zarr.json").unlink()
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", killed)
            command("store", "rm", path, "--yes")
        assert shutil.rmtree is rmtree
        assert self.left(path) == [".staging", "set-more"]
        listed = command("store", "ls", path.parent)[1]
        assert "half removed" in listed
        (remedy,) = re.findall(r"beyondcls (store rm --staging \S+)", listed)
        write_features(path)  # meanwhile, a new one
        assert command(*shlex.split(remedy), "--yes")[0] == 0
        assert self.left(path) == ["set", "set-more"]
        FeatureStore.open(path)


class TestRmStaging:
    def test_only_what_is_unfinished(self, command, tmp_path):
        path = tmp_path / "features/half"
        with staged(path) as writer:
            assert writer.claim(1)
            status, _, err = command("store", "rm", path, "--staging", "--yes")
            assert status == 1
            assert "is being written by process" in err
            assert writer.staging.exists()
        with staged(tmp_path / "features/half-more") as other:
            pass
        with staged(tmp_path / "features/third") as third:
            pass
        write_features(path.with_name("whole"))
        assert command("store", "rm", "--staging", third.staging, "--yes")[0] == 0
        assert writer.staging.exists()
        assert command("store", "rm", path, "--staging", "--yes")[0] == 0
        assert not writer.staging.exists()
        assert other.staging.exists()
        assert command("store", "rm", "--staging", other.staging, "--yes")[0] == 0
        assert [p.name for p in path.parent.iterdir()] == ["whole"]
        status, _, err = command("store", "rm", path, "--staging", "--yes")
        assert status == 1
        assert f"nothing is unfinished of {path}; there is: nothing" in err

    def test_what_several_left_that_were_killed(self, command, tmp_path):
        with staged(tmp_path / "half") as writer:
            (writer.staging / UNNAMED / "0.0123456789abcdef.partial").touch()
            (writer.staging / CLAIMS).mkdir(exist_ok=True)
            (writer.staging / CLAIMS / "1-3").write_text("{}")
            os.utime(writer.staging / CLAIMS / "1-3", (0, 0))
        shutil.copytree(writer.staging, writer.staging.with_name(f"{writer.staging.name}.{'0' * 16}.publishing"))
        assert command("store", "rm", tmp_path / "half", "--staging", "--yes")[0] == 0
        assert list(tmp_path.iterdir()) == []

    def test_foreign_files(self, command, tmp_path):
        with staged(tmp_path / "half") as writer:
            pass
        (writer.staging / "mine").write_text("keep")
        assert "does not belong" in command("store", "rm", tmp_path / "half", "--staging", "--yes")[2]
        assert (writer.staging / "mine").exists()
