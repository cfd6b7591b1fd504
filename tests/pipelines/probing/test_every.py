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
CALLED = {
    "probes/d/enc/cls",
    "probes/d/other/cls",
    "probes/d/enc/abmilp",
    "probes/d/other/abmilp",
    "probes/d/enc/average",
    "probes/d/other/average",
    "studies/d/chosen/enc",
}


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
    assert runs(head=["cls", "abmilp", "average"]) == {name for name in CALLED if "studies" not in name}
    assert runs(study=["s"]) == {"studies/d/chosen/enc"}


def test_heads_of_the_same_sets_share_a_run_unless_a_process_would_have_none(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"aggregator": "own.py:Own"}
    params = yaml.safe_load(PARAMS) | {
        "heads": {"abmilp": {}, "average": {}, "wide": {"aggregator": "abmilp", "epochs": 5}, "few": {"k_shot": 2}},
        "own_heads": {"mine": own, "yours": own},
    }
    params["heads"]["few"]["aggregator"] = "average"
    before = Path("params.yaml").read_text()
    Path("params.yaml").write_text(yaml.safe_dump(params))
    try:
        shared = every_run({"--encoder": ["enc"]}, None, [], lambda n_runs: 1)
        assert {run.name.removeprefix("probes/d/enc/") for run in shared} == {
            "cls", "abmilp and 2 more", "few", "mine", "yours", "studies/d/chosen/enc"
        }  # fmt: skip
        (run,) = (run for run in shared if "more" in run.name)
        assert run.arguments[-9:] == (
            "--head", "abmilp", "--head", "average", "--head", "wide", "--out", "probes/d/enc", "--on", "here"
        )[-9:]  # fmt: skip
        assert run.log == project / "probes/d/enc/.runs/abmilp.log"
        for n_places, n_runs in ((6, 6), (7, 7), (100, 8)):
            runs = every_run({"--encoder": ["enc"]}, None, [], lambda _, n=n_places: n)
            assert len(runs) == n_runs
            heads = [head for run in runs for word, head in pairwise(run.arguments) if word == "--head"]
            assert sorted(heads) == sorted(["cls", "abmilp", "average", "wide", "few", "mine", "yours"])
    finally:
        Path("params.yaml").write_text(before)


@pytest.mark.slow
def test_dvc_finds_them_done(project: Path, beyondcls: Callable[..., str]) -> None:
    shown = beyondcls("probe", "--every", "--device", "cpu", fails=True)
    assert "5 runs, each with a log, e.g. " in shown
    assert "error: 2 of 5 runs failed, 3 succeeded: probes/d/other/" in shown
    assert "features/other-d-train is not a feature set: it has no zarr.json" in shown
    assert "studies/d/chosen/enc/norm: top-1 " in shown
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
        (("--encoder", "end"), "unknown encoder 'end'; did you mean 'enc'? known: enc, other. These are in stages of dvc.yaml"),
        (("--head", "cls", "--study", "s"), "--study s and --head cls exclude each other"),
        (("--encoder", "other", "--study", "s"), "no stage of dvc.yaml has --encoder other --study s together; leave out one"),
        (("--params", "dvc.yaml"), "--params is dvc.yaml, but stages of dvc.yaml take params.yaml; leave it out"),
        (("--out", "o"), "--out o was given beside --every, whose runs are as dvc.yaml and params.yaml say; leave it out"),
        (("--epochs", 3), "--epochs 3 was given beside --every"),
        (("--skip-absent",), "--skip-absent True was given beside --every"),
    ],
)
def test_what_cannot_be(project: Path, given: tuple[object, ...], message: str, beyondcls: Callable[..., str]) -> None:
    assert message in beyondcls("probe", "--every", *given, fails=True)


def test_several_processes_that_were_started_together_do_not_each_start_all(
    project: Path, beyondcls: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert "--every starts a process for each run itself, and this is one of several" in beyondcls(
        "probe", "--every", fails=True
    )


def test_a_project_is_needed(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> str:
        with pytest.raises(BeyondClsError) as error:
            every_run({}, None, [])
        return str(error.value)

    monkeypatch.chdir(tmp_path)
    assert (
        f"there is none in {tmp_path}; give the command in the folder of the project, or give runs by themselves" in refused()
    )
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    assert "there is no parameter file 'params.yaml'" in refused()
    monkeypatch.chdir(project)
    before = Path("dvc.yaml").read_text()
    try:
        Path("dvc.yaml").write_text("stages: {a: {cmd: beyondcls report}}\n")
        assert refused().startswith(f"no stage of {project}/dvc.yaml runs `beyondcls probe`; add some to it, or give runs")
        Path("dvc.yaml").write_text("stages: {a: {cmd: 'beyondcls probe ${none}'}}\n")
        assert "the pipeline reads ${none}, which params.yaml lacks" in refused()
    finally:
        Path("dvc.yaml").write_text(before)
