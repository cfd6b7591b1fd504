"""Heads of one command as runs of an engine: same files as by this process, though one of them is killed and one fails."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from store import FeatureStore
from tests import forked  # noqa: F401  # its server has imported what is slow to import
from tests.features import write_features

# In the second of two passes it dies, once in a folder.
MORTAL = """\
import os, signal
from pathlib import Path

from beyondcls import AbMILP


class Mortal(AbMILP):
    def forward(self, features):
        if list(Path("probes/.unfinished/mortal").glob("*.safetensors")) and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(features)
"""
PARAMS = """\
cls_heads: {cls: {}}
own_heads: {mortal: {aggregator: "heads/mortal.py:Mortal"}, bad: {aggregator: abmilp, depth: none}}
probe: {on: processes, tasks: 2, seeds: [0, 1], order: own, epochs: 3, warmup_epochs: 0, batch_size: 32}
"""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[FeatureStore]:
    folder = tmp_path_factory.mktemp("sets")
    return [write_features(folder / name, 64, seed=seed) for seed, name in enumerate(("train", "test"))]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A new folder to be in, with parameters and a head of one's own."""

    def make(name: str) -> Path:
        (tmp_path / name / "heads").mkdir(parents=True)
        (tmp_path / name / "heads/mortal.py").write_text(MORTAL)
        (tmp_path / name / "params.yaml").write_text(PARAMS)
        monkeypatch.chdir(tmp_path / name)
        return tmp_path / name

    return make


def written(folder: Path) -> dict[str, bytes]:
    """Files of probes, but for logs and times."""
    files = (file for file in folder.rglob("*") if file.is_file() and ".runs" not in file.parts and file.name != "timing.json")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_files_are_those_of_this_process(
    sets: list[FeatureStore], project: Callable[[str], Path], beyondcls: Callable[..., str]
) -> None:
    given = ("probe", "--params", "params.yaml", "--features", sets[0].path, "--test", sets[1].path, "--device", "cpu")
    spread = project("spread")
    heads = ("--head", "cls", "--head=mortal", "--head", "bad")
    shown = beyondcls(*given, "--out", "probes", *heads, fails=True)
    assert "probes/mortal: was killed (SIGKILL), perhaps for lack of memory; it is started again, and goes on" in shown
    assert f"probes/bad: failed; see {spread}/probes/.runs/bad.log" in shown
    assert "error: 1 of 3 runs failed, 2 succeeded: probes/bad: " in shown
    assert "going on after 3 of 3 epochs" in (spread / "probes/.runs/mortal.log").read_text()
    here = project("here")
    (here / "killed").touch()
    for head in ("cls", "mortal"):
        said = beyondcls(*given, "--head", head, "--out", f"probes/{head}", "--on", "here")
        assert said.partition("note")[0].partition(f"probes/{head}: ")[2] in shown, "results are shown as here"
    files = written(here / "probes")
    assert written(spread / "probes") == files
    command = json.loads(files["cls/description.json"])["command"]
    assert command.endswith(" --device cpu --head cls --out probes/cls"), "where it was computed is not written"


def test_one_head_is_computed_by_this_process_and_several_are_so_together(
    sets: list[FeatureStore], project: Callable[[str], Path], beyondcls: Callable[..., str]
) -> None:
    short = ("--device", "cpu", "--epochs", 1, "--warmup-epochs", 0)
    given = ("probe", "--features", sets[0].path, "--test", sets[1].path, *short, "--head", "cls")
    folder = project("one")
    assert "features read once for cls" in beyondcls(*given, "--out", "cls", "--on", "processes")
    assert "for cls, average" in beyondcls(*given, "--head", "average", "--out", "b", "--on", "here")
    assert not list(folder.rglob(".runs"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--out o", "--features and --test are missing"),
        ("--features f --test t", "--out is missing"),
        ("--head cls --head cls --tasks 2", "--head NAME=cls"),
        ("--on slrm", "'slurm'?"),
        ("--params params.yaml", "probe.tasks is 'many', expected a whole number"),
    ],
)
def test_what_cannot_be(given: str, message: str, project: Callable[[str], Path], beyondcls: Callable[..., str]) -> None:
    (project("wrong") / "params.yaml").write_text("cls_heads: {cls: {}}\nprobe: {tasks: many}\n")
    places = "" if "missing" in message else "--features f --test t --out o"
    assert message in beyondcls("probe", *places.split(), *given.split(), fails=True)
