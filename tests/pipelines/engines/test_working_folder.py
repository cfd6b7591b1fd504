"""Files in the folder that a command is given in are not taken for packages, by no process that it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.engines.engine import Run
from pipelines.engines.slurm import RunArray, Slurm
from tests.extract.pictures import picture, write_file
from tests.machines.project import ROOT
from tests.pipelines.engines.test_slurm import TASK
from tests.pipelines.engines.workers import Load

NAMES = ("extract", "pipelines", "probe", "store", "numpy", "torch", "typer", "yaml")
NAMES += ("multiprocessing", "selectors", "signal", "socket")
# What pip installs, and after it processes of each kind that the program starts.
SCRIPT = """\
import multiprocessing, sys
from beyondcls import run

def imports():
    import numpy, pipelines.engines.engine, yaml

if __name__ == "__main__":
    try:
        run()
    except SystemExit as end:
        assert not end.code, end.code
    for kind in ("spawn", "forkserver"):
        context = multiprocessing.get_context(kind)
        context.set_forkserver_preload(["numpy", "pipelines.engines.engine"])
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


def test_commands_with_their_processes_and_tasks(folder: Path) -> None:
    (folder.parent / "beyondcls-script").write_text(SCRIPT)
    start(sys.executable, folder.parent / "beyondcls-script", "params")
    start("bash", text=RunArray(Slurm(), [Run.writing(str(folder.parent / "logs/f"), ("params",))]).script)
    start(sys.executable, "-P", "-m", "pipelines.parameters.commands")


@pytest.mark.slow
def test_an_encoder_in_a_file_of_a_packages_name(folder: Path) -> None:
    """A command and the process of its engine read it, and take none of the folder for the program's own."""
    Load(folder)
    (folder / "encoder.py").rename(folder / "extract.py")
    write_file(folder / "images/a/0.png", picture(0))
    (folder.parent / "script").write_text('from beyondcls import run\nif __name__ == "__main__":\n    run()\n')
    given = ("--encoder", "extract.py:make", "--data", "images", "--out", "f", "--on", "processes", "--tasks", "1")
    start(sys.executable, folder.parent / "script", "extract", *given)
    assert Path("f/zarr.json").exists()
