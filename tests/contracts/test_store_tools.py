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


@every
class TestEveryTool:
    def test_explains_itself_in_a_line(self, name):
        """All that its help says is asked of every command: tests/contracts/test_stages.py."""
        lines = (inspect.getdoc(TOOLS[name].callback) or "").splitlines()
        assert lines, "its docstring is its help"
        assert lines[0].endswith((".", ";")), "its first line is what the list of tools shows"

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
