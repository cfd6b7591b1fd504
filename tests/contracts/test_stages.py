"""What holds for every command, and for every stage of dvc.yaml."""

import importlib
import inspect
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import typer
import yaml

from pipelines.cli import app
from pipelines.code.closure import Project
from pipelines.code.units import units
from pipelines.parameters.commands import QUOTED
from pipelines.parameters.params import OTHERS, read_params
from tests.machines.project import ROOT
from tests.pipelines.test_cli import run


def leaves(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Commands by their words; of a group, those in it."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, *words, name)
    if not hasattr(command, "commands"):
        yield words, command


COMMANDS = dict(leaves(typer.main.get_command(app)))
MAINS = {command.name: command.callback for command in app.registered_commands}
# What a command writes, apart from what it shows, and from where it is computed.
PARTS = {"pipelines.params": "pipelines.parameters.recipes", "pipelines.probe": "pipelines.probing.training"}
CHECKS = "python -P -m pipelines.parameters.commands"
VALUE, QUOTE = r"\$\{([^}]*)\}", r"'[^']*'"
NAMES = {"key", *(f"item.{name}" for name in ("split", *OTHERS))}  # which `read_params` checks
STAGES = {name: stage.get("do", stage) for name, stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].items()}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
class TestEveryCommand:
    def test_help_says_what_it_does_and_what_it_takes(self, words, monkeypatch, capsys):
        status, out, _ = run(monkeypatch, capsys, *words, "--help")
        assert status == 0
        described = inspect.getdoc(COMMANDS[words].callback) or ""
        assert described.partition("\n")[0].endswith((".", ";")), "its first line is what the list of commands shows"
        public = [parameter for parameter in COMMANDS[words].params if not getattr(parameter, "hidden", False)]
        helps = [getattr(parameter, "help", None) for parameter in public]
        assert all([described, *helps])
        assert not COMMANDS[words].ignore_unknown_options
        shown = "".join(out.split())
        assert [text for text in (described, *helps) if "".join(text.split()) not in shown] == []

    def test_what_is_not_there_is_a_line_and_leaves_nothing(self, words, monkeypatch, capsys, tmp_path):
        monkeypatch.chdir(tmp_path)
        given = []
        for parameter in (p for p in COMMANDS[words].params if p.required):
            value = "1" if parameter.type_descriptor.annotation is int else "nowhere"
            given += [parameter.opts[0]] * (parameter.param_type_name == "option") + [value]
        if not given and words[0] != "store":
            pytest.skip("works anywhere")
        status, out, err = run(monkeypatch, capsys, *words, *given)
        assert list(tmp_path.iterdir()) == []
        assert "Traceback" not in out + err
        if not given and not status:
            assert out, "it says that there is nothing"
            return
        assert status == 1
        assert err.startswith("error: ")
        assert ("nowhere" if given else "there is no ") in err


def commands(stage: str) -> list[str]:
    """The commands of a stage, without the one that checks what is in them."""
    return [command for command in [STAGES[stage]["cmd"]] if isinstance(command, str)] or STAGES[stage]["cmd"][1:]


def programs(stage: str) -> list[tuple[Callable[..., None], list[str]]]:
    """What a stage runs, one after the other, and what it gives each."""
    mains = []
    for words in (shlex.split(part) for command in commands(stage) for part in command.split("&&")):
        if words[0] == "beyondcls":
            mains.append((MAINS[words[1]], words[2:]))
        else:
            assert words[:3] == ["python", "-P", "-m"]
            package = (ROOT / words[3].replace(".", "/")).is_dir()
            mains.append((importlib.import_module(words[3] + ".__main__" * package).main, words[4:]))
    return mains


@cache
def of_the_code() -> dict[str, str]:
    """Modules that are run, by the file or folder of their digests."""
    every = units(read_params(ROOT / "params.yaml"), Project(ROOT))
    return {unit.file.partition("/")[0] + ("" if "/" in unit.file else ".json"): unit.modules[0] for unit in every}


@pytest.mark.parametrize("stage", STAGES)
class TestEveryStage:
    def test_its_program_takes_what_it_is_given(self, stage):
        for main, given in programs(stage):
            known = {f"--{name.strip('_').replace('_', '-')}" for name in inspect.signature(main).parameters}
            assert {word.partition("=")[0] for word in given if word.startswith("--")} <= known

    def test_depends_on_the_digest_of_what_it_runs_and_of_what_reads_its_images(self, stage):
        body = STAGES[stage]
        deps = [dep for dep in body["deps"] if dep.startswith("code/")]
        (module,) = {main.__module__ for main, _ in programs(stage)}
        if module.startswith("pipelines.code."):
            return
        ours = {name for name, run_by in of_the_code().items() if run_by in (module, PARTS.get(module))}
        assert ours, f"{module} has no unit in pipelines/code/units.py"
        (program,) = (dep for dep in deps if dep.split("/")[1] in ours)
        own = [dep.partition("}/")[2] for dep in body["deps"] if dep.startswith("${data}/")]  # those that draw new images
        own += ["${item.dataset}"] * ("${item.dataset}" in str(body["cmd"]) and "extract" in stage and "composed" not in stage)
        expected = ["code/data"] * (stage == "report") + [f"code/data/{name}.json" for name in own]
        reads_composed = stage == "report" or any(dep.startswith("composed/") for dep in body["deps"])
        assert deps == [program, *expected, *["code/readers/csv.json"] * reads_composed]
        assert all(name in " ".join(commands(stage)) for dep in deps for name in re.findall(r"\$\{[^}]*\}", dep))

    def test_what_it_puts_into_a_command_is_checked_first(self, stage):
        """Names cannot be anything else, options of a table are words, and other values are in quotes."""
        if "${" in str(STAGES[stage]["cmd"]):
            assert STAGES[stage]["cmd"][0] == CHECKS
        for command in commands(stage):
            assert {*re.findall(VALUE, re.sub(QUOTE, "", command))} <= NAMES | {"item.options"}
            quoted = {*re.findall(VALUE, " ".join(re.findall(QUOTE, command)))}
            assert quoted <= NAMES | {re.sub(r".*\*", "item", place) for place in QUOTED}

    def test_says_what_it_is_for(self, stage):
        assert STAGES[stage]["desc"].endswith(".")


def test_the_stage_of_the_code_writes_all_digests_and_runs_after_any_edit():
    code = STAGES["code"]
    assert {f"code/{name}" for name in of_the_code()} == set(code["outs"])
    everything = Project(ROOT).digests([*of_the_code().values()], {})
    assert {file.partition("/")[0] for file in everything} <= set(code["deps"])
    assert "params.yaml" in code["deps"]
