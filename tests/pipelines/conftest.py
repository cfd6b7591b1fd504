"""The command line, for tests of any command."""

from collections.abc import Callable

import pytest

from tests.pipelines.test_cli import run


@pytest.fixture
def beyondcls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `beyondcls ARGUMENTS` says, without line breaks; with `fails` it must end with an error in one line."""

    def said(*arguments: object, fails: bool = False) -> str:
        status, out, err = run(monkeypatch, capsys, *arguments)
        assert status == int(fails), out + err
        assert "Traceback" not in err
        return " ".join((out + err).split())

    return said
