"""All runs of dvc.yaml: which there are, that `dvc repro` finds them done, and what is said where there are none."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.probing.spread import every_run
from store import BeyondClsError
from tests import forked  # noqa: F401
from tests.features import write_features
from tests.machines.machine import git
from tests.machines.project import ROOT

PARAMS = """\
encoders: {enc: {}, other: {}}
datasets: [d]
cls_heads: {cls: {}}
heads: {abmilp: {}, average: {}}
own_heads: {}
studies: {s: {study: chosen, dataset: d, encoder: enc, joined: enc, heads: {norm: {}}}}
probe: {on: processes, tasks: 2, seeds: [0], epochs: 2, warmup_epochs: 0, batch_size: 16}
"""
CALLED = {f"probes/d/{encoder}/{head}" for encoder in ("enc", "other") for head in ("cls", "abmilp", "average")}
CALLED.add("studies/d/chosen/enc")


def stages() -> dict[str, Any]:
    """Those that train heads, as in the real dvc.yaml, but for what they depend on."""
    real = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    kept = {name: real[name] for name in ("probe-cls", "probe", "probe-own", "study")}
    for stage in kept.values():
        stage.get("do", stage)["deps"] = ["params.yaml"]
    return kept


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with features of one of its two encoders, in which tests run."""
    folder = tmp_path_factory.mktemp("project")
    write_features(folder / "features/enc-d-train", 96, crops=True)
    write_features(folder / "features/enc-d-test", 48, seed=1, crops=True)
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "dvc.yaml").write_text(
        yaml.safe_dump({"stages": {"old": {"cmd": "beyondcls probe --out old", "frozen": True}, **stages()}}, sort_keys=False)
    )
    git(folder, "init", "-q")
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=folder, check=True)
    (folder / ".dvc/config").write_text("[core]\n    analytics = false\n")
    (folder / "beyondcls").write_text(f'#!/bin/sh\nexec {sys.executable} -m pipelines.cli "$@"\n')
    (folder / "beyondcls").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def runs(**names: list[str]) -> set[str]:
    """Names of the runs that have these."""
    given = {f"--{option}": values for option, values in names.items()}
    return {run.name for run in every_run(given, Path("params.yaml"), [])}


def test_runs_are_those_of_the_stages(project: Path) -> None:
    (run,) = every_run({"--encoder": ["enc"], "--head": ["cls"]}, None, ["--device", "cpu"])
    assert run.command == (
        "beyondcls probe --params params.yaml --dataset d --encoder enc --head cls --skip-absent "
        "--features features/enc-d-train --test features/enc-d-test --out probes/d/enc/cls --device cpu --on here"
    )
    assert run.log == project / "probes/d/enc/.runs/cls.log"
    assert runs() == CALLED
    assert runs(encoder=["enc"]) == {name for name in CALLED if "other" not in name}
    assert runs(study=["s"]) == {"studies/d/chosen/enc"}


@pytest.fixture
def rewritten(project: Path) -> Iterator[Callable[[str, object], None]]:
    """Writes a file of the project, which is as before in the end."""
    before = {name: Path(name).read_text() for name in ("params.yaml", "dvc.yaml")}
    yield lambda name, content: (project / name).write_text(yaml.safe_dump(content)) and None
    for name, text in before.items():
        (project / name).write_text(text)


def test_heads_of_the_same_sets_share_a_run_unless_a_process_would_have_none(project, rewritten):
    own = {"aggregator": "own.py:Own"}
    heads = {"abmilp": {}, "average": {}, "wide": {"aggregator": "abmilp", "epochs": 5}}
    heads["few"] = {"k_shot": 2, "aggregator": "average"}
    rewritten("params.yaml", yaml.safe_load(PARAMS) | {"heads": heads, "own_heads": {"mine": own, "yours": own}})
    shared = every_run({"--encoder": ["enc"]}, None, [], lambda n_runs: 1)
    names = {"cls", "abmilp and 2 more", "few", "mine", "yours", "studies/d/chosen/enc"}
    assert {run.name.removeprefix("probes/d/enc/") for run in shared} == names
    (run,) = (run for run in shared if "more" in run.name)
    assert " ".join(run.arguments).endswith(" --head abmilp --head average --head wide --out probes/d/enc --on here")
    assert run.log == project / "probes/d/enc/.runs/abmilp.log"
    for n_places, n_runs in ((7, 7), (100, 8)):
        runs = every_run({"--encoder": ["enc"]}, None, [], lambda _, n=n_places: n)
        assert len(runs) == n_runs
        trained = [head for run in runs for word, head in pairwise(run.arguments) if word == "--head"]
        assert sorted(trained) == sorted(["cls", *heads, "mine", "yours"])


@pytest.mark.slow
def test_dvc_finds_them_done(project: Path, beyondcls: Callable[..., str]) -> None:
    shown = beyondcls("probe", "--every", "--device", "cpu", fails=True)
    assert "5 runs, each with a log, e.g. " in shown
    assert "error: 2 of 5 runs failed, 3 succeeded: probes/d/other/" in shown
    assert "features/other-d-train is not a feature set: it has no zarr.json" in shown
    trained = project / "probes/d/enc/average/trained/seed0.safetensors"
    before = trained.stat()
    given = [sys.executable, "-m", "dvc", "repro", "--single-item", "probe@enc-d-average"]
    environment = {**os.environ, "PATH": f"{project}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    # As the parameter file says, it would be spread, too: one run is computed by the process of the stage.
    done = subprocess.run(given, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "probes/d/enc/average: kept, " in " ".join(done.stdout.split()), done.stdout
    assert (trained.stat().st_mtime_ns, trained.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--encoder end", "did you mean 'enc'? known: enc, other."),
        ("--head cls --study s", "--study s and --head cls exclude each other"),
        ("--encoder other --study s", "no stage of dvc.yaml has --encoder other --study s together"),
        ("--params dvc.yaml", "--params is dvc.yaml, but stages of dvc.yaml take params.yaml"),
        ("--skip-absent", "--skip-absent True was given beside --every"),
        ("", "--every starts a process for each run itself, and this is one of several"),  # that were started together
    ],
)
def test_what_cannot_be(project, given, message, beyondcls, monkeypatch):
    if not given:
        monkeypatch.setenv("RANK", "0")
    assert message in beyondcls("probe", "--every", *given.split(), fails=True)


def test_a_project_is_needed(project, rewritten, tmp_path, monkeypatch):
    def refuses(message: str) -> None:
        with pytest.raises(BeyondClsError, match=message):
            every_run({}, None, [])

    monkeypatch.chdir(tmp_path)
    refuses(f"there is none in {tmp_path}; go to the project, or give runs by themselves")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    refuses("there is no parameter file 'params.yaml'")
    monkeypatch.chdir(project)
    rewritten("dvc.yaml", {"stages": {"a": {"cmd": "beyondcls report"}}})
    refuses(f"no stage of {project}/dvc.yaml runs `beyondcls probe`; add some to it, or give runs")
    rewritten("dvc.yaml", {"stages": {"a": {"cmd": "beyondcls probe ${none}"}}})
    refuses(r"the pipeline reads \$\{none\}, which params.yaml lacks")
