"""A regular installation into an empty environment, used from another folder, without timm."""

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.features import write_features
from tests.machines.machine import top_level

ROOT = Path(__file__).resolve().parents[1]


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


@pytest.mark.slow
def test_install_into_an_empty_environment(tmp_path):
    """What pip would fetch for it is linked from here, and nothing else: fetching takes minutes and gigabytes."""
    source = tmp_path / "source"  # pip builds beside the sources
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".*", "*.egg-info", "quickstart", "features", "probes", "tests", "build")
    )
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv/bin/python"
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(*command: object) -> str:
        shown = subprocess.run([*map(str, command)], cwd=elsewhere, env=environment, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stdout + shown.stderr
        return shown.stdout

    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", source)
    (installed,) = distributions(name="beyondcls", path=[str(site)])
    for one in required(installed).values():
        for entry in top_level(one.name):
            if not (site / entry).exists():
                (site / entry).symlink_to(one.locate_file(entry))
    assert "extract" in run(tmp_path / "venv/bin/beyondcls", "--help")
    where = run(python, "-c", "import beyondcls; beyondcls.open_store; print(beyondcls.__file__)")
    assert where.startswith(str(tmp_path / "venv"))
    # The environment has no timm at all, and probing does not miss it.
    run(python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('timm') is not None)")
    train, test = write_features(tmp_path / "train", 128), write_features(tmp_path / "test", 64, seed=1)
    sets = ("--features", train.path, "--test", test.path, "--out", tmp_path / "out")
    shown = run(tmp_path / "venv/bin/beyondcls", "probe", *sets, "--epochs", "2", "--warmup-epochs", "0")
    assert "top-1" in shown
    script = "import beyondcls, sys; beyondcls.load_probe(sys.argv[1]); print(len(beyondcls.open_store(sys.argv[2])))"
    assert run(python, "-c", script, tmp_path / "out/trained/seed0", test.path).strip() == "64"


def test_what_pip_would_install():
    package = distribution("beyondcls")
    assert "numpy" in required(package)  # torch's, too
    assert required(package).keys().isdisjoint({"timm", "torchvision", "pillow", "dvc"})
    assert {"timm", "zarr", "dvc", "s3fs", "botocore"} <= required(package, frozenset({"dev"})).keys()


def test_this_environment_runs_the_tree_under_test():
    import store

    assert Path(store.__file__).resolve().parent == ROOT / "store", f"{sys.executable} imports another copy; run `make test`"
