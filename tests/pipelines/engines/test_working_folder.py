"""Files in the folder that a command is given in are not taken for packages, by no process that it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.engines.slurm import Slurm
from tests.machines.project import ROOT
from tests.pipelines.engines.test_slurm import TASK

NAMES = ("multiprocessing", "numpy", "pipelines", "selectors", "signal", "socket", "store", "torch", "typer", "yaml")
# What pip installs, and after it processes of each kind that the program starts.
SCRIPT = """\
import multiprocessing, sys
from beyondcls import run

def imports():
    import numpy, pipelines.engines.log, yaml

if __name__ == "__main__":
    try:
        run()
    except SystemExit as end:
        assert not end.code, end.code
    for kind in ("spawn", "forkserver"):
        context = multiprocessing.get_context(kind)
        context.set_forkserver_preload(["numpy", "pipelines.engines.log"])
        process = context.Process(target=imports)
        process.start()
        process.join()
        assert process.exitcode == 0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with such files; each notes that it was imported."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write('{name} ')\n")
    (folder / "params.yaml").write_text("encoders: {}\n")
    return folder


def start(*command: str | Path, text: str = "") -> None:
    environment = {**os.environ, **TASK, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, input=text, capture_output=True, text=True)
    assert not Path("ran").exists(), Path("ran").read_text()
    assert done.returncode == 0, done.stderr


def test_the_command_and_its_processes(folder: Path) -> None:
    (folder.parent / "beyondcls-script").write_text(SCRIPT)
    start(sys.executable, folder.parent / "beyondcls-script", "params")


def test_a_task_of_slurm(folder: Path) -> None:
    start("bash", text=Slurm().script(["params"], folder / "f").replace("--task-id", "; exit; "))


def test_the_check_of_what_dvc_runs(folder: Path) -> None:
    start(sys.executable, "-P", "-m", "pipelines.parameters.commands")
