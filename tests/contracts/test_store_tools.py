"""What holds for every store tool: it explains itself, and says what is missing."""

import inspect

import pytest
import typer

from pipelines import store
from tests.folders import files
from tests.pipelines.test_cli import run

GROUP = typer.main.get_command(store.app)
TOOLS = GROUP.commands  # type: ignore[attr-defined]
every = pytest.mark.parametrize("name", TOOLS)


@pytest.fixture
def beyondcls(monkeypatch, capsys):
    return lambda *arguments: run(monkeypatch, capsys, *arguments)


def test_the_help_lists_them(beyondcls):
    status, out, _ = beyondcls("store", "--help")
    assert status == 0
    assert [name for name in TOOLS if name not in out] == []


@every
class TestEveryTool:
    def test_explains_itself(self, name, beyondcls):
        tool = TOOLS[name]
        said = (inspect.getdoc(tool.callback) or "").splitlines()
        assert said, "its docstring is its help"
        assert said[0].endswith((".", ";")), "its first line is what the list of tools shows"
        status, out, _ = beyondcls("store", name, "--help")
        assert status == 0
        assert said[0].split()[0] in out
        for parameter in tool.params:
            if parameter.name != "help":
                assert getattr(parameter, "help", None), f"{parameter.name} has a help text"

    def test_says_what_is_missing(self, name, beyondcls, tmp_path, monkeypatch):
        """Where there is nothing: one message that names what was asked for, no traceback, and nothing is made."""
        monkeypatch.chdir(tmp_path)
        arguments = []
        for parameter in TOOLS[name].params:
            if parameter.required:
                arguments += [parameter.opts[0]] * (parameter.param_type_name == "option") + [f"none-{parameter.name}"]
        status, out, err = beyondcls("store", name, *arguments)
        assert "Traceback" not in err
        if status:
            assert status == 1
            assert err.startswith("error: ")
            assert "there is no " in err or "none-" in err
        else:
            assert out, "it says that there is nothing"
        assert files(tmp_path) == {}

    def test_an_option_that_there_is_not(self, name, beyondcls):
        status, _, err = beyondcls("store", name, "--nonsense")
        assert status == 2
        assert "--nonsense" in err
