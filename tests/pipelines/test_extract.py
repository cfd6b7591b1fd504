"""`beyondcls extract` where features are there already: what stays, what is said, and what is written beside the receipt."""

import importlib.metadata
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from extract.attention import STATISTICS
from store import FeatureStore, environment
from tests.extract.pictures import samples, write_pictures, write_tar
from tests.folders import files

N = 40
ENCODER = {
    "model": "vit_tiny_patch16_224",
    "arguments": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "random_seed": 0,
}
Command = Callable[..., str]


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with images and parameters, to run in."""
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "data/0.tar", samples(N))
    write_params(tmp_path)
    return tmp_path


def write_params(folder: Path, root: str | None = None, **of_encoder: object) -> None:
    content = {"encoders": {"tiny": ENCODER | of_encoder}, "extract": {"shard_rows": 32}, "store": {"root": root}}
    (folder / "params.yaml").write_text(yaml.safe_dump(content))


@pytest.fixture
def extract(project, beyondcls) -> Command:
    def extract(*options: object, out: str = "features/a", fails: bool = False) -> str:
        receipt = f"receipts/{Path(out).name}.json"
        given = ["--encoder", "tiny", "--params", "params.yaml", "--data", "data", "--out", out, "--receipt", receipt, *options]
        return beyondcls("extract", *given, fails=fails)

    return extract


@pytest.fixture
def edit(monkeypatch) -> Callable[[], None]:
    """Change the definition of a statistic by a thousandth."""
    before = STATISTICS["cls_self"]
    return lambda: monkeypatch.setitem(STATISTICS, "cls_self", lambda attention: before(attention) + 1e-3)


def check(name: str = "a") -> dict:
    return json.loads(Path(f"receipts/{name}.check.json").read_text())


@pytest.mark.parametrize("options", [(), ("--update",)], ids=["", "update"])
def test_a_set_that_is_there_stays(options, project, extract):
    extract(*options)
    before, receipt = files(project / "features/a"), Path("receipts/a.json").read_bytes()
    made = check()
    assert made["compared"] == [], "it was extracted"
    out = extract(*options)
    assert "features/a: not computed again, a sample of 32 of its 40 images agrees (at most 0" in out
    assert files(project / "features/a") == before
    assert Path("receipts/a.json").read_bytes() == receipt, "what depends on it need not run"
    [compared] = check()["compared"]
    assert (compared["key"], compared["n_sampled"]) == (made["key"], 32)
    assert {**check(), "compared": []} == made


@pytest.mark.parametrize(("telling_s", "says"), [(0.0, True), (3600.0, False)])
def test_what_binds_is_said_of_a_run_that_took_its_time(telling_s: float, says: bool, project, extract, monkeypatch):
    monkeypatch.setattr("extract.stages.TELLING_S", telling_s)
    assert bool(re.search(r"[a-z]+ binds: encoder idle \d+ %", extract())) == says
    assert "binds" not in extract(), "nothing was computed"


def test_classes_are_said_and_can_be_named_later(project, extract):
    assert "classes: 3 without names, first 0, last 2; 1 has the fewest images, 13, 0 the most, 14" in extract()
    made = FeatureStore.open("features/a")
    Path("names.txt").write_text("owl\ncat\ndog\n")
    out = extract("--update", "--classes", "names.txt")
    assert "classes: 3, first owl, last dog; cat has the fewest images, 13, owl the most, 14" in out
    assert "features/a: not computed again" in out
    named = FeatureStore.open("features/a")
    assert (named.attributes["classes"], named.spec.key) == (["owl", "cat", "dog"], made.spec.key)


def test_classes_that_are_splits(project, extract):
    write_pictures(project / "photos", *(f"{split}/cat/{i}.jpg" for split in ("train", "val") for i in range(2)))
    out = extract("--data", "photos")
    assert "classes: 2, first train, last val; 2 images each" in out
    assert "note: the classes are train, val, which look like splits; name one of them, as in --split train" in out
    assert "note: all labelled images are of one class, cat;" in extract(
        "--data", "photos", "--split", "train", out="features/b"
    )


def test_another_version_of_torch_and_a_package_that_is_gone(project, extract, monkeypatch):
    def version(name: str) -> str:
        if name == "timm":
            raise importlib.metadata.PackageNotFoundError(name)
        return "99.0" if name == "torch" else importlib.metadata.version(name)

    extract()
    before = files(project / "features/a")
    assert check()["versions"]["timm"] == importlib.metadata.version("timm")
    monkeypatch.setattr(environment, "version", version)
    extract("--update")
    assert files(project / "features/a") == before
    assert check()["versions"]["torch"] == "99.0"
    assert "timm" not in check()["versions"]
    assert check()["device"] == "cpu"


@pytest.mark.parametrize("how", ["option", "parameter"])
def test_an_edit_of_a_statistic_stops_or_is_computed_again(how, project, extract, edit):
    extract()
    before, made = files(project / "features/a"), check()
    edit()
    err = extract("--update", fails=True)
    assert "a sample of 32 of its 40 images differs in 1 of" in err
    assert "--recompute, or recompute: true under that encoder in the parameter file" in err
    assert files(project / "features/a") == before
    assert check() == made
    if how == "parameter":
        write_params(project, recompute=True)
    assert "it is extracted again" in extract("--update", *(["--recompute"] if how == "option" else []))
    assert check()["compared"] == []
    extract(out="features/b")
    assert files(project / "features/a") == files(project / "features/b")
    assert "not computed again" in extract("--recompute"), "it agrees now"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--update", "--extend"), "--update and --extend exclude each other"),
        (("--extend", "--repair"), "--extend and --repair exclude each other"),
        (("--update", "--repair"), "--update and --repair exclude each other"),
        ((), "encoders.tiny.recompute is 3, expected true or false"),
    ],
)
def test_what_cannot_be(given, named, project, extract):
    if not given:
        write_params(project, recompute=3)
    assert named in extract(*reversed(given), fails=True)


def test_the_family_of_weights_is_that_of_params_yaml_or_of_the_command(project, extract, beyondcls):
    write_params(project, family="untrained")
    extract()
    attributes = FeatureStore.open(project / "features/a").attributes
    assert (attributes["family"], attributes["random_seed"]) == ("untrained", 0)
    err = extract("--family", "labels", fails=True)
    assert "tiny has random weights (seed 0), but its family is 'labels'; leave the family out" in " ".join(err.split())
    write_params(project, family="labels", random_seed=None)
    beyondcls("plan", "--encoder", "tiny", "--params", "params.yaml", "--data", "data", "--out", "features/b")  # random weights


def test_from_another_set(project, extract):
    extract("--blocks", "0,1")
    err = extract("--blocks", "0", fails=True)
    assert "give another --out, or remove it first, or add to it with --extend" in err
    assert err.rstrip().endswith("or let this one take its place with --update")
    out = extract("--from", "features/a", out="features/b")
    assert "features/a: not computed again, a sample of 32 of its 40 images agrees" in out
    assert check("b")["compared"][0]["key"] == check("a")["key"] != check("b")["key"]
    extract(out="features/c")
    assert files(project / "features/b") == files(project / "features/c")
    err = extract("--from", "features/nowhere", out="features/d", fails=True)
    assert "features/nowhere" in err
    err = extract("--from", "features/a", "--dtype", "int8", out="features/d", fails=True)
    assert "features/a cannot be taken over from: dtype differ" in err


class TestAtASharedRoot:
    @pytest.fixture(autouse=True)
    def root(self, project, tmp_path_factory) -> str:
        root = str(tmp_path_factory.mktemp("root"))
        write_params(project, root)
        return root

    def test_a_set_that_is_there_is_compared(self, extract, edit):
        extract()
        out = extract("--update")
        assert "not computed again, a sample of 32 of its 40 images agrees" in out
        edit()
        err = extract("--update", "--recompute", fails=True)
        assert "remove that set (beyondcls store rm, " in err

    def test_the_set_that_a_stub_names_is_used(self, root, project, extract):
        """Another set of the same encoder follows it; the old one stays for others."""
        extract("--blocks", "0")
        out = extract("--blocks", "0,1", "--update")
        assert "not computed again, a sample of 32" in out
        assert len(list(Path(root).glob("a-*"))) == 2
        new = FeatureStore.open(next(p for p in Path(root).glob("a-*") if (p / "patch/block1").exists()))
        write_params(project)
        extract("--blocks", "0,1", out="features/b")
        assert files(new.path) == files(project / "features/b")

    def test_a_stub_gives_way(self, project, extract):
        """Where there is no root any more."""
        extract()
        write_params(project)
        err = extract(fails=True)
        assert "is a stub" in err
        extract("--update")
        assert FeatureStore.open("features/a").kinds


def test_images_of_a_list(extract, project):
    """The command's key is that of the same images by themselves."""
    (project / "ids.txt").write_text("0033\n0004.png\n")
    extract("--ids", "ids.txt")
    write_tar(project / "alone.tar", [samples(N)[i] for i in (4, 33)])
    extract("--data", "alone.tar", out="features/b")
    stores = [FeatureStore.open(project / "features" / name) for name in "ab"]
    assert stores[0].ids == ["0004", "0033"]
    assert stores[0].spec.key == stores[1].spec.key
    (project / "ids.txt").write_text("0033\n0099\n")
    assert "1 of 2 ids are not in data, first '0099'" in extract("--ids", "ids.txt", out="features/c", fails=True)
