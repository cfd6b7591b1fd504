"""What is published: the sdist and the wheel, a regular installation of the latter, and versions that are required."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from setuptools.config.setupcfg import read_configuration

from tests.extract.pictures import picture
from tests.features import write_features
from tests.machines.machine import top_level
from tests.machines.project import working_tree
from tests.machines.served import commands_in

ROOT = Path(__file__).resolve().parents[1]


def locked(versions: str) -> dict[str, list[Version]]:
    """Versions in a file of requirements/ by name; of some there is another for each Python."""
    by_name: dict[str, list[Version]] = {}
    for line in (ROOT / f"requirements/{versions}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (pin,) = requirement.specifier
            by_name.setdefault(canonicalize_name(requirement.name), []).append(Version(pin.version))
    return by_name


def required(package: Distribution, extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """Distributions by name that pip would install with this one, from those that are installed here."""
    by_name: dict[str, Distribution] = {}
    waiting, seen = [(package, extras)], set[tuple[str, frozenset[str]]]()
    while waiting:
        one, chosen = waiting.pop()
        for requirement in map(Requirement, one.requires or ()):
            known = (requirement.name, frozenset(requirement.extras))
            wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *chosen))
            if wanted and known not in seen:
                seen.add(known)
                by_name[requirement.name] = distribution(requirement.name)
                waiting.append((by_name[requirement.name], known[1]))
    return by_name


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist and the wheel that is made of it, by suffix."""
    folder = tmp_path_factory.mktemp("release")
    source = folder / "source"  # setuptools builds beside the sources
    for name in working_tree(ROOT):
        if not name.startswith("quickstart/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", source)
    shown = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return {".whl" if file.suffix == ".whl" else ".tar.gz": file for file in (folder / "dist").iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".whl", ".tar.gz"])
def test_archives_hold_the_program_and_nothing_else(archives: dict[str, Path], suffix: str):
    contents = runpy.run_path(str(ROOT / ".ci/contents.py"))
    assert contents["differences"](archives[suffix]) == []


@pytest.mark.slow
def test_what_an_archive_lacks_or_has_too_much_is_named(archives: dict[str, Path], tmp_path: Path):
    wheel = tmp_path / archives[".whl"].name
    lacking = ("pipelines/report/page.css", "beyondcls-0.1.0.dist-info/licenses/LICENSE")
    with zipfile.ZipFile(archives[".whl"]) as whole, zipfile.ZipFile(wheel, "w") as changed:
        for name in set(whole.namelist()).difference(lacking):
            changed.writestr(name, whole.read(name))
        changed.writestr("tests/test_install.py", "")
    shown = subprocess.run([sys.executable, str(ROOT / ".ci/contents.py"), str(wheel)], capture_output=True, text=True)
    assert shown.returncode == 1
    assert shown.stderr.splitlines() == [
        *(f"{wheel.name} lacks {name}" for name in sorted(lacking)),
        f"{wheel.name} has tests/test_install.py, which does not belong there",
    ]


class Installed:
    """The wheel in an environment of its own; what pip would fetch for it, which takes minutes, is linked from here."""

    def __init__(self, wheel: Path, folder: Path):
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.python, self.elsewhere = folder / "venv/bin/python", folder / "elsewhere"
        self.elsewhere.mkdir()
        self.run(sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", wheel)
        (self.site,) = (folder / "venv/lib").glob("python*/site-packages")
        self.link()

    def link(self, *extras: str, beside: Sequence[str] = ()) -> None:
        """Add what pip would fetch for extras, and other packages."""
        (installed,) = distributions(name="beyondcls", path=[str(self.site)])
        packages = required(installed, frozenset(extras))
        for name in beside:
            packages |= {name: distribution(name), **required(distribution(name))}
        for one in packages.values():
            for entry in top_level(one.name):
                if not (self.site / entry).exists():
                    (self.site / entry).symlink_to(one.locate_file(entry))

    def run(self, *command: object, folder: str = "", served: Path | None = None) -> str:
        """What a command prints; `served`: commands that come first, whose path of imports is this environment's."""
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment |= {"PATH": f"{self.python.parent}:{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1"}
        if served is not None:
            environment |= {"PATH": f"{served}:{environment['PATH']}", "PYTHONPATH": str(self.site)}
        shown = subprocess.run(
            [*map(str, command)], cwd=self.elsewhere / folder, env=environment, capture_output=True, text=True
        )
        assert shown.returncode == 0, shown.stdout + shown.stderr
        return shown.stdout


ENCODER = """\
import timm
import torch

def make():
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", depth=2, embed_dim=48, num_heads=2, num_classes=0, img_size=32)
"""


@pytest.mark.slow
def test_install_into_an_empty_environment(archives: dict[str, Path], tmp_path: Path):
    """Where there is no source: first what probing requires, alone; then with the extras, a project of one's own."""
    installed = Installed(archives[".whl"], tmp_path)
    run, python = installed.run, installed.python
    assert "extract" in run(tmp_path / "venv/bin/beyondcls", "--help")
    train, test = write_features(tmp_path / "train", 128), write_features(tmp_path / "test", 64, seed=1)
    sets = ("--features", train.path, "--test", test.path, "--out", tmp_path / "out")
    shown = run(tmp_path / "venv/bin/beyondcls", "probe", *sets, "--epochs", "2", "--warmup-epochs", "0")
    assert "top-1" in shown
    # The environment has no timm at all, and probing does not miss it.
    script = """
import importlib.util, sys, beyondcls
assert importlib.util.find_spec("timm") is None
beyondcls.load_probe(sys.argv[1])
print(beyondcls.__file__, len(beyondcls.open_store(sys.argv[2])))
"""
    where, n = run(python, "-c", script, tmp_path / "out/trained/seed0", test.path).split()
    assert where.startswith(str(tmp_path / "venv"))
    assert n == "64"
    installed.link("extract", "probe", beside=["dvc"])
    check_a_project(installed, tmp_path)


def check_a_project(installed: Installed, tmp_path: Path) -> None:
    """A module of one's own, images, `init`, `dvc repro`, a second head."""
    for split, n in (("train", 24), ("test", 8)):
        for number in range(n):
            file = installed.elsewhere / "pictures" / split / str(number % 2) / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(picture(number))
    program = installed.python.with_name("beyondcls")
    installed.run(program, "init", "mine", "--data", "pictures", "--encoder", "own.py:make", "--head", "abmilp")
    folder = installed.elsewhere / "mine"
    (folder / "own.py").write_text(ENCODER)
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["probe"] = {"seeds": [0], "epochs": 2, "warmup_epochs": 0, "batch_size": 8}

    def repro(served: Path) -> set[str]:
        (folder / "params.yaml").write_text(yaml.safe_dump(params))
        shown = installed.run(served / "dvc", "repro", folder="mine", served=served)
        return set(re.findall(r"Running stage '([^']+)'", shown)) - {"code", "recipes", "code-data@pictures"}

    extracted = {"extract@make-pictures-train", "extract@make-pictures-test"}
    with commands_in(tmp_path / "served", python=installed.python) as served:
        installed.run(served / "dvc", "init", "--no-scm", "--quiet", folder="mine", served=served)
        assert repro(served) == {*extracted, "probe@make-pictures-abmilp", "attention@make-pictures", "report"}
        assert (folder / "report/index.html").is_file()
        params["heads"]["both"] = {"aggregator": "cls-average"}
        assert repro(served) == {"probe@make-pictures-both", "report"}
    assert not any((folder / package).exists() for package in ("extract", "pipelines", "probe", "store"))


def test_what_pip_would_install():
    package = distribution("beyondcls")
    assert "numpy" in required(package)  # torch's, too
    assert required(package).keys().isdisjoint({"timm", "torchvision", "pillow", "dvc"})
    assert {"timm", "zarr", "dvc", "s3fs", "botocore"} <= required(package, frozenset({"dev"})).keys()


def test_this_environment_runs_the_tree_under_test():
    import store

    assert Path(store.__file__).resolve().parent == ROOT / "store", f"{sys.executable} imports another copy; run `make test`"


def test_every_requirement_has_a_lower_bound_which_is_locked():
    """`nox -s bounds` runs the tests with requirements/lowest.txt, which has just the bounds, and with newest.txt."""
    options = read_configuration(ROOT / "setup.cfg")["options"]
    texts = [*options["install_requires"], *(text for extra in options["extras_require"].values() for text in extra)]
    lowest, newest = locked("lowest"), locked("newest")
    for requirement in map(Requirement, texts):
        if (name := canonicalize_name(requirement.name)) != "beyondcls":
            bounds = [specifier.version for specifier in requirement.specifier if specifier.operator in (">=", "==")]
            assert len(bounds) == 1, f"{requirement} has no lower bound"
            assert lowest[name] == [Version(bounds[0])], requirement
            assert all(requirement.specifier.contains(version) for version in newest[name]), requirement


def test_one_version_everywhere():
    version = read_configuration(ROOT / "setup.cfg")["metadata"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert distribution("beyondcls").version == version


def test_the_changelog_has_releases_in_their_order():
    headings = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    dated = [re.fullmatch(r"(\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d", heading) for heading in headings[1:]]
    assert all(dated), headings
    versions = [Version(match[1]) for match in dated]
    assert versions == sorted(set(versions), reverse=True)
    assert max(versions, default=Version("0")) <= Version(distribution("beyondcls").version)
