"""A package with an entry of each kind, installed: from listings to a probe; and what is said where it is not."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beyondcls import testing
from extract.encoders import load_encoder
from pipelines.cli import app
from pipelines.code.closure import Project
from pipelines.code.units import units
from pipelines.doctor import CHECKS
from pipelines.doctor.command import run
from pipelines.doctor.machine import Machine
from pipelines.live.online import load_as_recorded
from probe.aggregators import AGGREGATORS
from probe.saved import load_probe
from store import BeyondClsError, FeatureStore
from tests.extract.pictures import samples, write_tar
from tests.plugins import MODULE, PACKAGE, ROOT, declare, installed


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def present(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(site)
    yield site
    sys.modules.pop(MODULE, None)


@pytest.fixture(scope="module")
def world(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two feature sets and a probe that the commands made with the package."""
    folder = tmp_path_factory.mktemp("world")
    write_tar(folder / "data/000.tar", samples(24))
    statistics = "cls_self,newcomer_first_to_cls,newcomer_growth"
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(site)
        patched.chdir(folder)
        make = ("--encoder", "newcomer-vit", "--argument", "depth=3", "--statistics", statistics)
        app(["extract", *make, "--data", "data", "--out", "set"], standalone_mode=False)
        train = ("--head", "newcomer-gem", "--option", "p=2.0", "--epochs", "2", "--warmup-epochs", "0", "--seeds", "0")
        app(["probe", "--features", "set", "--test", "set", "--out", "gem", *train], standalone_mode=False)
    sys.modules.pop(MODULE, None)
    return folder


def test_its_entries_keep_the_contracts(present: Path) -> None:
    testing.check_encoder("newcomer-vit", arguments={"depth": 1})
    testing.check_aggregator("newcomer-gem")
    for name in ("newcomer_first_to_cls", "newcomer_growth"):
        testing.check_statistic(name)
    testing.check_dataset("newcomer-birds")
    testing.check_metric("newcomer_top2")


def test_what_it_brings_is_computed_where_it_is_named_alone_and_the_key_says_of_which_code(world: Path, present: Path) -> None:
    store = FeatureStore.open(world / "set")
    architecture = json.loads(store.spec.architecture)
    assert (architecture["model"], architecture["package"], architecture["depth"]) == ("newcomer-vit", PACKAGE, 3)
    assert len(architecture["code"]) == 32
    assert store.spec.statistics == ("cls_self", "newcomer_first_to_cls", "newcomer_growth")
    assert store.array("statistics/newcomer_first_to_cls/view0").shape == (24, 3, 2)
    assert store.array("statistics/newcomer_growth/view0").shape == (24, 3)
    encoder = load_encoder("quickstart-random")
    assert encoder.can_have("newcomer_growth")
    assert not any(name.startswith("newcomer") for name in encoder.statistics)
    assert {"top1", "top5", "newcomer_top2"} <= json.loads((world / "gem/metrics.json").read_text()).keys()


def test_a_saved_head_names_the_package(world: Path, present: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world / "gem/trained/seed0"
    assert json.loads(path.with_suffix(".json").read_text())["package"] == PACKAGE
    assert type(load_probe(path).aggregator).__module__ == MODULE
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(present)])
    with pytest.raises(BeyondClsError, match=rf"'newcomer-gem' of the package '{PACKAGE}'.*pip install {PACKAGE}"):
        load_probe(path)
    recorded = {"architecture": FeatureStore.open(world / "set").spec.architecture}
    with pytest.raises(BeyondClsError, match=rf"encoder 'newcomer-vit' of the package '{PACKAGE}'.*pip install {PACKAGE}"):
        load_as_recorded("newcomer-vit", recorded, {})


def test_listings_and_errors_have_its_names_where_it_is_installed(beyondcls, site, world, tmp_path, monkeypatch) -> None:
    sets = ("--features", world / "set", "--test", world / "set", "--out", tmp_path / "out")
    assert "newcomer" not in beyondcls("encoders", "newcomer")
    assert "unknown aggregator 'newcomer-gem'" in beyondcls("probe", *sets, "--head", "newcomer-gem", fails=True)
    shutil.copytree(world / "gem/trained", tmp_path / "older")
    described = json.loads((world / "gem/trained/seed0.json").read_text())
    (tmp_path / "older/seed0.json").write_text(json.dumps({n: v for n, v in described.items() if n != "package"}))
    with pytest.raises(BeyondClsError, match="unknown aggregator 'newcomer-gem'"):
        load_probe(tmp_path / "older/seed0")
    monkeypatch.syspath_prepend(site)
    assert f"newcomer-vit: of the package {PACKAGE} 1.2" in beyondcls("encoders", "newcomer")
    assert "did you mean 'newcomer-gem'?" in beyondcls("probe", *sets, "--head", "newcomr-gem", fails=True)
    assert "'p'" in beyondcls("probe", *sets, "--head", "newcomer-gem", "--option", "pp=1", fails=True)
    sys.modules.pop(MODULE, None)


def test_a_package_that_cannot_be_imported_is_noted(beyondcls: Callable[..., str], tmp_path: Path, monkeypatch) -> None:
    declare(tmp_path, "fault", "encoders", {"faulty-vit": "fault:make"})
    (tmp_path / "fault.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    shown = beyondcls("encoders", "faulty")
    assert "faulty-vit: of the package fault 1.0" in shown
    assert "No module named 'a_package_that_is_not_there'" in shown
    assert "quickstart-mae" in beyondcls("encoders", "quickstart")
    assert AGGREGATORS["abmilp"]
    finding = list(run({"plugins": CHECKS["plugins"]}, Machine(tmp_path)))[-1]
    assert finding.state == "problem"
    assert "'faulty-vit' of the package fault 1.0" in finding.found
    assert "a_package_that_is_not_there" in finding.found


def test_digests_of_code_are_of_what_is_used(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those below code/, which `dvc repro` compares."""
    shutil.copytree(site, tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    params = {
        "encoders": {"mine": {"model": "newcomer-vit"}, "quickstart-random": {}},
        "heads": {"abmilp": {}, "gem": {"aggregator": "newcomer-gem"}},
        "extract": {"statistics": ["cls_self"]},
    }
    project = Project(ROOT)

    expected = {
        "extract/mine": {f"{PACKAGE}: encoders.newcomer-vit"},
        "extract/quickstart-random": set(),
        "heads/gem": {f"{PACKAGE}: aggregators.newcomer-gem", f"{PACKAGE}: metrics.newcomer_top2"},
        "readers/newcomer-birds": {f"{PACKAGE}: datasets.newcomer-birds"},
    }

    def of_packages() -> dict[str, dict[str, str | None]]:
        chosen = [unit for unit in units(params, project) if unit.file in expected]
        digests = {unit.file: project.digests(unit.modules, unit.used) for unit in chosen}
        return {file: {name: digest for name, digest in of_unit.items() if ": " in name} for file, of_unit in digests.items()}

    before = of_packages()
    assert {file: set(digests) for file, digests in before.items()} == expected
    assert MODULE not in sys.modules
    with (tmp_path / "site" / f"{MODULE}.py").open("a") as module:
        module.write("ONE = 1\n")
    assert all(digest != before[file][name] for file, digests in of_packages().items() for name, digest in digests.items())
    sys.modules.pop(MODULE, None)
