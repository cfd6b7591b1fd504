"""Logs of commands: what they say, where they are, and for how long."""

import os
import re
import sys
import time
import warnings
from importlib import metadata
from pathlib import Path

import pytest
import typer

from pipelines.process import command_log
from pipelines.process.command_log import CommandLog, folder_of_logs
from store.errors import BeyondClsWarning

COMMAND = ("store", "verify", "nowhere at all")


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """The folder of logs."""
    monkeypatch.setenv("BEYONDCLS_LOG", str(tmp_path / "logs"))
    return tmp_path / "logs"


def test_a_command_that_fails(command, logs):
    assert command(*COMMAND)[0] == 1
    (file,) = logs.iterdir()
    begin, folder, versions, *trace, message, imported, end = file.read_text().splitlines()
    assert begin == "$ beyondcls store verify 'nowhere at all'"
    assert folder.startswith(f"in {Path.cwd()}, process {os.getpid()} on ")
    assert versions.startswith(f"beyondcls {metadata.version('beyondcls')}, Python 3.")
    assert all(f"{name} {metadata.version(name)}" in versions for name in ("torch", "numpy", "zarr"))
    assert trace[0].startswith("Traceback")
    assert message.startswith("error: ")
    assert imported.startswith("imported ")
    assert re.match(r"ended with status 1 after \d+\.\d s, 20", end)
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_unforeseen_error_names_the_log(command, logs, monkeypatch):
    def describe(*_, **__):
        warnings.warn("which may matter", BeyondClsWarning, stacklevel=1)
        raise RuntimeError("a is 3")

    monkeypatch.setattr("store.FeatureStore.describe", describe)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        status, _, err = command(*COMMAND)
    (file,) = logs.iterdir()
    assert str(file) in err.splitlines()[-1]
    for words in ("note: which may matter\n", "RuntimeError: a is 3\n\nerror: RuntimeError", f"with status {status} "):
        assert words in file.read_text()


def test_what_is_drawn_again_and_again_is_not_copied(logs, capsys):
    log = CommandLog.begin(["x"])
    before = sys.stderr
    with log.copying_stderr():
        typer.echo("note: one line", err=True)
        for text in ("in two ", "parts\n", "\r 3 of 4\n", "\x1b[2K4 of 4\n", "\n", "the rest"):
            sys.stderr.write(text)
        sys.stderr.flush()
    assert sys.stderr is before
    (file,) = logs.iterdir()
    assert file.read_text().splitlines()[3:] == ["note: one line", "in two parts"]
    assert capsys.readouterr().err == "note: one line\nin two parts\n\r 3 of 4\n\x1b[2K4 of 4\n\nthe rest"


@pytest.mark.parametrize("arguments", [("--version",), ("store", "verify", "--help"), ()])
def test_what_runs_nothing_has_none(command, logs, arguments):
    command(*arguments)
    assert not logs.exists()


def test_logs_that_cannot_be_kept_stop_nothing(command, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BEYONDCLS_LOG", str(tmp_path / "file"))
    status, _, err = command("params", "--help-me")
    assert status == 2
    assert re.match("note: no log is kept of this command .* BEYONDCLS_LOG", err)


def test_the_last_ones_stay_and_those_of_a_day(logs, monkeypatch):
    monkeypatch.setattr(command_log, "KEPT", 3)
    logs.mkdir()
    (logs / "notes.txt").touch()
    names = [f"2026010{day}T000000.000000-1.log" for day in range(1, 7)]
    for name in names:
        (logs / name).touch()
        if name != names[1]:
            os.utime(logs / name, (0, time.time() - 2 * command_log.DAY_S))
    log = CommandLog.begin(["x"])
    assert log.file is not None
    assert {file.name for file in logs.iterdir()} == {"notes.txt", names[1], *names[4:], log.file.name}


def test_the_default_folder_is_the_users_and_that_of_tests_none(monkeypatch, tmp_path):
    assert folder_of_logs() is None
    monkeypatch.delenv("BEYONDCLS_LOG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative, which the standard says to ignore")
    assert folder_of_logs() == tmp_path / ".local/state/beyondcls/logs"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert folder_of_logs() == tmp_path / "state/beyondcls/logs"
