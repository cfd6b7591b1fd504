"""Which engine options ask for, and what is said where they cannot be."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.engines import choose_engine
from pipelines.engines.processes import Here, LocalProcesses
from pipelines.engines.ray_tasks import RayTasks
from pipelines.engines.slurm import Slurm
from store import BeyondClsError


@pytest.mark.parametrize(
    ("options", "engine"),
    [
        ({}, Here()),
        ({"tasks": 1}, Here()),
        ({"tasks": 3}, LocalProcesses(tasks=3)),
        ({"gpus": "all"}, LocalProcesses(gpus="all")),
        ({"on": "here", "tasks": 3}, Here()),
        ({"on": "processes", "tries": 5}, LocalProcesses(tries=5)),
        ({"on": "slurm", "tasks": 2, "sbatch": "-p gpu", "gpus": "all"}, Slurm(tasks=2, sbatch="-p gpu")),
        ({"on": "ray", "address": "auto"}, RayTasks(address="auto")),
    ],
)
def test_choice(options: dict[str, Any], engine: object) -> None:
    assert choose_engine(options) == engine


def test_the_command_line_wins_over_the_parameter_file_and_a_task_computes_here() -> None:
    assert choose_engine({"on": "processes", "gpus": "all", "tasks": 2}, ["tasks"]) == LocalProcesses(tasks=2)
    assert choose_engine({"on": "processes", "gpus": "all", "tasks": 2}, ["gpus"]) == LocalProcesses(gpus="all")
    assert choose_engine({"on": "slurm", "tasks": 8}, is_task=True) == Here()
    assert choose_engine({"on": "here"}, ["on"], is_task=True) == Here()


@pytest.mark.parametrize(
    ("options", "named", "is_task", "message"),
    [
        ({"on": "rai"}, (), False, "unknown engine 'rai'; did you mean 'ray'? known: here, processes, ray, slurm. Give one of"),
        ({"on": "ray"}, ("on",), True, "--on ray starts workers itself, and this is one of several tasks already"),
        ({"on": "ray", "gpus": 2}, ("gpus",), False, "--gpus 2 is not for --on ray; leave it out, or give --on processes"),
        ({"on": "here", "tasks": 2}, ("tasks",), False, "--tasks 2 is not for --on here; leave it out"),
        ({"tasks": 0, "on": "processes"}, (), False, "tasks is 0, expected 1 or more"),
        ({"tries": 0, "on": "ray"}, (), False, "tries is 0, expected 1 or more"),
        ({"tasks": 2, "gpus": 2}, (), False, "tasks is 2 and gpus is 2: there is one worker for each GPU; give one of them"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], named: tuple[str, ...], is_task: bool, message: str) -> None:
    with pytest.raises(BeyondClsError) as error:
        choose_engine(options, named, is_task=is_task)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--on", "ray"), "error: this needs ray, which is not installed here; pip install 'beyondcls[ray]'"),
        (("--gpus", "some"), "--gpus is 'some', expected all, or how many GPUs"),
        (("--gpus", "2"), "gpus is 2, but torch sees "),
        (("--dry-run",), "--dry-run is for the script of a job array; give --on slurm, too"),
        (("--on", "processes", "--n-tasks", "2"), "--on processes starts workers itself, and this is one of several tasks"),
        (("--on", "processes", "--repair"), "one process repairs a feature set; leave out the number of tasks"),
        (("--on", "slurm", "--repair"), "one process repairs a feature set; give --on here with --repair"),
        (("--on", "slurm"), "--on slurm calls sbatch, which was not found on this machine; give the command on a login node"),
    ],
)
def test_on_the_command_line(
    options: tuple[str, ...], message: str, beyondcls: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images/a").mkdir(parents=True)
    (tmp_path / "images/a/0.ppm").write_bytes(b"P6 2 2 255\n" + bytes(12))
    given = ("--encoder", "quickstart-random", "--data", "images", "--out", "f", "--device", "cpu")
    assert message in beyondcls("extract", *given, *options, fails=True)
