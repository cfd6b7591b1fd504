"""What `dvc repro` starts where params.yaml has something else than names and values: nothing but the check."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.machines.project import ROOT
from tests.machines.served import DVC, commands_in

RUNS = "; touch ran #"  # what a shell would do
ENTRY = {"dataset": "d", "encoder": "e", "joined": "e", "study": "s", "stored": "1,-1", "features": "e-d", "head": "h"}
REAL = yaml.safe_load((ROOT / "dvc.yaml").read_text())
Repro = Callable[[str, dict[str, Any]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with commands_in(tmp_path_factory.mktemp("commands") / "bin", packages=DVC) as folder:
        yield folder


@pytest.fixture
def repro(commands: Path, tmp_path: Path) -> Repro:
    """`dvc repro` of a stage of the real dvc.yaml that depends on nothing; `beyondcls` notes what it is given."""
    (tmp_path / "beyondcls").write_text('#!/bin/sh\nfor word; do echo "$word"; done > given\n')
    (tmp_path / "beyondcls").chmod(0o755)
    path = os.pathsep.join((str(tmp_path), str(commands), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "DVC_NO_ANALYTICS": "1", "SHELL": "/bin/sh"}
    subprocess.run(["dvc", "init", "--no-scm", "-q"], cwd=tmp_path, env=environment, check=True)

    def run(stage: str, params: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        real = REAL["stages"][stage]
        described = {name: value for name, value in real.items() if name in ("foreach", "matrix", "cmd")}
        described |= {"do": {"cmd": real["do"]["cmd"]}} if "do" in real else {}
        (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"vars": REAL["vars"], "stages": {stage: described}}))
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
        return subprocess.run(["dvc", "repro"], cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    ("stage", "params"),
    [
        ("extract", {"encoders": {f"x{RUNS}": {}}, "datasets": ["d"]}),
        ("extract-blocks", {"block_studies": {"b": {**ENTRY, "stored": f"1'{RUNS}"}}}),
        ("compose", {"data": "x", "composed": {"d": {"n_images": 1, "seed": "0'\ntouch ran #"}}}),
    ],
)
def test_nothing_runs_that_is_no_name_or_value(stage: str, params: dict[str, Any], repro: Repro, tmp_path: Path) -> None:
    shown = repro(stage, params)
    assert shown.returncode != 0
    assert "error: " in shown.stderr
    assert {"ran", "given"}.isdisjoint(path.name for path in tmp_path.iterdir()), shown.stdout


def test_values_with_blanks_and_quotes_are_one_word(repro: Repro, tmp_path: Path) -> None:
    shown = repro("extract-blocks", {"block_studies": {"b": {**ENTRY, "stored": 'a "$HOME" b'}}})
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert '--blocks=a "$HOME" b' in (tmp_path / "given").read_text().splitlines()
