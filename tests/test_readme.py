"""What README says is so: its Python runs, its commands and options exist, its files are there."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import zarr

from pipelines.cli import app
from probe.run import probe
from probe.train import Recipe
from tests.features import write_features

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("beyondcls ")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_runs(tmp_path, monkeypatch):
    test = write_features(tmp_path / "features/quickstart-mae-test")
    recipe = Recipe(epochs=1, warmup_epochs=0)
    probe(test, test, tmp_path / "probes/quickstart-mae/abmilp", recipe=recipe, seeds=(0,))
    monkeypatch.chdir(tmp_path)
    write_features(tmp_path / "features/quickstart-mae-train")
    reading, training = ({}, {})
    for block, names in zip(blocks("python"), (reading, training), strict=True):
        exec(block, names)
    assert reading["patch"].shape == (3, 9, 8)
    assert training["patch"].shape == (96, 9, 8)
    assert training["loader"].reason.startswith("memory: ")
    array = re.search(r'zarr\.open_group\("(.*?)"\)\["(.*?)"\]', README)
    assert array is not None
    assert zarr.open_group(array[1])[array[2].replace("block5", "block1")].shape[0] == 96


def test_there_are_commands():
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_options_exist(command):
    group = typer.main.get_command(app)
    _, name, *arguments = shlex.split(command)
    known = {option for parameter in group.commands[name].params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= known


def test_make_targets_and_linked_files_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_ci_runs_the_test_command_of_the_readme():
    assert "exec make test" in (ROOT / ".ci/run").read_text()
