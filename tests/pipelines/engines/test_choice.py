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
from tests.extract.pictures import write_file


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


def test_the_command_line_wins_and_a_task_computes_here() -> None:
    both = {"on": "processes", "gpus": "all", "tasks": 2}
    assert choose_engine(both, ["tasks"]) == LocalProcesses(tasks=2)
    assert choose_engine(both, ["gpus"]) == LocalProcesses(gpus="all")
    assert choose_engine({"on": "slurm", "tasks": 8}, is_task=True) == Here()
    assert choose_engine({"on": "here"}, ["on"], is_task=True) == Here()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": "rai"}, "'ray'"),
        ({"tasks": 0, "on": "processes"}, "tasks is 0, expected 1"),
        ({"tries": 0, "on": "ray"}, "tries is 0, expected 1"),
        ({"tasks": 2, "gpus": 2}, "tasks is 2 and gpus is 2"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BeyondClsError, match=message):
        choose_engine(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--on ray", "pip install 'beyondcls[ray]'"),
        ("--gpus some", "--gpus is 'some', expected all"),
        ("--gpus 2", "gpus is 2, but torch sees "),
        ("--dry-run", "give --on slurm, too"),
        ("--on processes --n-tasks 2", "--on processes starts workers itself"),
        ("--on processes --repair", "leave out the number of tasks"),
        ("--on slurm --repair", "give --on here with --repair"),
        ("--on slurm", "--on slurm calls sbatch, which was not found"),
    ],
)
def test_on_the_command_line(
    options: str, message: str, beyondcls: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "images/a/0.ppm", b"P6 2 2 255\n" + bytes(12))
    given = ("--encoder", "quickstart-random", "--data", "images", "--out", "f", "--device", "cpu")
    assert message in beyondcls("extract", *given, *options.split(), fails=True)
