"""Several processes for one command: which are started, and that each knows that it is one of them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.process.tasks import is_task, start_tasks
from tests.extract.pictures import samples, write_tar


def test_the_same_command_under_torchrun_exits_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["beyondcls", "extract", "--encoder", "mae-b16"])
    monkeypatch.setattr(subprocess, "call", lambda command: (started.append(command), 3)[1])
    with pytest.raises(SystemExit) as exited:
        start_tasks(4)
    assert exited.value.code == 3
    ((python, *rest),) = started
    assert python == sys.executable
    assert rest[:2] == ["-m", "torch.distributed.run"]
    assert "--nproc-per-node=4" in rest
    assert rest[-5:] == ["-m", "pipelines.cli", "extract", "--encoder", "mae-b16"]


@pytest.mark.parametrize(("given", "n"), [("params", 3), ("option", 2), ("task", None), ("rank", None)])
def test_extraction_starts_them_once(
    given: str, n: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    """Not where this process is one of several already, or was given its share."""
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "0.tar", samples(2))
    (tmp_path / "params.yaml").write_text(
        "encoders: {any: {model: vit_tiny_patch16_224, random_seed: 0}}\nextract: {tasks: 3}\n"
    )
    if given == "rank":
        monkeypatch.setenv("RANK", "0")
    assert is_task() == (given == "rank")
    started: list[int] = []

    def start(n: int) -> None:
        started.append(n)
        raise SystemExit(0)

    monkeypatch.setattr("pipelines.process.tasks.start_tasks", start)
    options = {"option": ("--tasks", 2), "task": ("--n-tasks", 1)}.get(given, ())
    images = ("--data", "0.tar", "--out", "f", "--device", "cpu", "--statistics", "none")
    status, _, err = command("extract", "--params", "params.yaml", "--encoder", "any", *images, *options)
    assert status == 0, err
    assert started == ([] if n is None else [n])
    assert Path("f").exists() == (n is None)
