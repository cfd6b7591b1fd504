"""What is imported only when it is used. One process does one thing after the other, and says what it has loaded by then."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.features import write_features

ROOT = Path(__file__).resolve().parents[1]
STEPS = """
import json, sys

def loaded(step):
    print("LOADED", json.dumps([step, sorted({name.partition(".")[0] for name in sys.modules})]))

import beyondcls
loaded("front door")
import pipelines.code.__main__, pipelines.cli
loaded("commands")
beyondcls.open_store
loaded("store")
import torch
from probe.closed import Vectors, make_closed
vectors = Vectors(torch.eye(4).repeat(3, 1), torch.arange(12) % 2, 2)
make_closed("ridge").fit(vectors, vectors), make_closed("knn", ks=(1, 2)).fit(vectors, vectors)
make_closed("logistic").fit(vectors, vectors)
loaded("logistic")
train, test, out = sys.argv[1:]
pipelines.cli.app(["probe", "--features", train, "--test", test, "--out", out, "--head", "cls", "--epochs", "2",
                   "--warmup-epochs", "0", "--seeds", "0"], standalone_mode=False)
loaded("probe")
beyondcls.ProbeClassifier
loaded("classifier")
"""
HEAVY = {"torch", "timm", "torchvision", "webdataset", "zarr", "matplotlib", "fsspec", "sklearn"}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Packages, by what was done before."""
    folder = tmp_path_factory.mktemp("sets")
    sets = [str(write_features(folder / name, 64, seed=seed).path) for seed, name in enumerate(("train", "test"))]
    command = [sys.executable, "-c", STEPS, *sets, str(folder / "out")]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert (folder / "out/metrics.json").exists()
    lines = (line.removeprefix("LOADED ") for line in shown.stdout.splitlines() if line.startswith("LOADED "))
    return {step: set(packages) for step, packages in map(json.loads, lines)}


@pytest.mark.parametrize(
    ("step", "absent"),
    [
        ("front door", HEAVY | {"store", "typer"}),
        ("commands", HEAVY),  # help is there at once, and digests of the code on a machine that only probes
        ("store", {"timm", "torchvision", "webdataset", "sklearn"}),
        ("logistic", {"timm", "sklearn"}),
        ("probe", {"timm", "torchvision", "webdataset", "extract", "sklearn"}),
    ],
)
def test_is_not_loaded_before_it_is_used(step, absent, loaded):
    assert loaded[step] & absent == set()


def test_is_loaded_when_it_is_used(loaded):
    assert "store" in loaded["store"]
    assert "sklearn" in loaded["classifier"]


@pytest.mark.parametrize("file", ["store.py", "probe/__init__.py"])
def test_a_package_of_another_origin_is_named(file, tmp_path):
    """A user's script beside a module of that name."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    (tmp_path / "script.py").write_text(f"import sys; sys.path.append({str(ROOT)!r}); import beyondcls")
    shown = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    message = f"has a package {file[:5]!r} in {ROOT}, but under this name Python finds {tmp_path / file}; install beyondcls in"
    assert message in shown.stderr.splitlines()[-1]


FIRST = (
    *("beyondcls torch", "extract.run", "extract.encoders", "probe.run", "probe.estimator", "pipelines.live.online"),
    *("pipelines.engines.engine torch", "store.loading.loader", "benchmarks.probe", "tests.conftest"),
)
STOPPING_AT_TORCH = """
import importlib, os, sys

class Stopping:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Stopping())
for names in sys.argv[1:]:
    if not os.fork():
        for name in names.split():
            importlib.import_module(name)
        os._exit(1)
    os.wait()
"""


@pytest.mark.parametrize(("given", "expected"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_threads_wait_asleep_before_torch_is_imported(given: dict[str, str], expected: str) -> None:
    """Wherever it is imported first; a user's own choice stays."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    command = [sys.executable, "-c", STOPPING_AT_TORCH, *FIRST]
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert dict(zip(FIRST, shown.stdout.split(), strict=True)) == dict.fromkeys(FIRST, expected)
    assert shown.stderr == ""
