"""The command line, for tests of any command."""

from collections.abc import Callable

import pytest

from tests.pipelines.test_cli import run


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit status, standard output and standard error of `beyondcls ARGUMENTS`, which never has a traceback."""

    def command(*arguments: object) -> tuple[int, str, str]:
        status, out, err = run(monkeypatch, capsys, *arguments)
        assert "Traceback" not in err
        return status, out, err

    return command


@pytest.fixture
def beyondcls(command: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """What `beyondcls ARGUMENTS` says, without line breaks; with `fails` it must end with an error in one line."""

    def run_command(*arguments: object, fails: bool = False) -> str:
        status, out, err = command(*arguments)
        assert status == int(fails), out + err
        return " ".join((out + err).split())

    return run_command
