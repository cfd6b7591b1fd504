"""How commands end: exit status, what they say, and what --debug adds. The statuses are those of docs/command-line.md."""

import errno
import io
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError

from pipelines.cli import FAILED, INTERRUPTED, UNFORESEEN, run
from pipelines.process.tasks import TO_BE_CONTINUED
from tests.features import write_features
from tests.machines.project import ROOT
from tests.pipelines.test_cli import run as run_command

COMMAND = ("store", "verify", "nowhere")


@pytest.fixture
def ending(command, monkeypatch):
    """Exit status and standard error of a command in which an error occurs."""

    def ending(error):
        monkeypatch.setattr("store.FeatureStore.describe", Mock(side_effect=error))
        status, _, err = command(*COMMAND)
        return status, err

    return ending


def test_statuses_are_documented():
    text = (ROOT / "docs/command-line.md").read_text()
    documented = [int(status) for status in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    assert documented == [0, FAILED, 2, UNFORESEEN, TO_BE_CONTINUED, INTERRUPTED]


def test_what_is_asked_and_what_a_user_causes(command):
    assert command("--version") == (0, f"beyondcls {metadata.version('beyondcls')}\n", "")
    status, out, err = command(*COMMAND)
    assert (status, out) == (FAILED, "")
    assert re.fullmatch("error: .*nowhere.*\n", err)


@pytest.mark.parametrize("arguments", [("extrakt",), ("plan", "--seeds", "x")])
def test_usage(command, arguments):
    status, _, err = command(*arguments)
    assert status == 2
    assert "Usage: beyondcls" in err


FULL = os.strerror(errno.ENOSPC)
NOT_GIVEN = [
    (OSError(errno.ENOSPC, FULL), r"the disk of /.*: No space left on device; [\d.e+]+ GB are free.*, and give the same"),
    (OSError(errno.ENOSPC, FULL, "/tmp/x"), r"/tmp/x: No space left on device; [\d.e+]+ GB are free"),
    (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), "No space left on device; "),
    (OSError("65536 requested and 12288 written"), "No space left on device; "),  # of numpy.save
    (PermissionError(errno.EPERM, "Operation not permitted", b"a\xff"), r"a\\udcff: Operation not permitted; see whose it is"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "a"), "a: No such file or directory; nothing of this name"),
    (OSError(errno.EIO, "Input/output error", 5), "error: Input/output error; give the command again"),
    (MemoryError(), "memory does not suffice: MemoryError; stop what else uses it"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"), "memory does not suffice: CUDA out of memory. Tried; "),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory does not suffice: DefaultCPU"),
]
OF_THE_SYSTEM = [(error, FAILED, f"(?=error: )(?:error: .*)?{message}(?:(?!foreseen).)*\\n") for error, message in NOT_GIVEN]
UNKNOWN = r" \(not foreseen: `beyondcls --debug COMMAND` shows the traceback\)\n"
OTHERS = [
    (OSError("from a library"), UNFORESEEN, f".*{UNKNOWN}"),
    (RuntimeError("memory layout"), UNFORESEEN, f".*{UNKNOWN}"),
    (ModuleNotFoundError("No module named 'x'", name="x"), UNFORESEEN, f".*{UNKNOWN}"),
    (RuntimeError("a is 3\nand more"), UNFORESEEN, f"error: RuntimeError: a is 3{UNKNOWN}"),
    (AssertionError(), UNFORESEEN, f"error: AssertionError: no reason was given{UNKNOWN}"),
    (ModuleNotFoundError(name="timm.models"), FAILED, r"error: this needs timm, .*; pip install 'beyondcls\[extract\]'\n"),
    (KeyboardInterrupt(), INTERRUPTED, "interrupted; .* the same command is given again\n"),
]


@pytest.mark.parametrize(("error", "status", "message"), [*OF_THE_SYSTEM, *OTHERS], ids=lambda value: type(value).__name__)
def test_errors(ending, error, status, message):
    ended, err = ending(error)
    assert ended == status
    assert re.fullmatch(message, err)


def test_of_several_disks_the_fullest_is_named(ending, monkeypatch, tmp_path):
    """Errors while writing do not say of which file."""
    (tmp_path / "small").mkdir()
    free = lambda folder: SimpleNamespace(free=int(Path(folder).name != "small"))  # noqa: E731
    monkeypatch.setattr("shutil.disk_usage", free)
    monkeypatch.setattr(f"{__name__}.COMMAND", (*COMMAND[:2], str(tmp_path / "small/set")))
    assert f"error: the disk of {tmp_path}/small: No space left" in ending(OSError(errno.ENOSPC, FULL))[1]


def test_names_that_are_not_utf8_are_shown(monkeypatch, tmp_path):
    """On standard output, as on standard error."""
    path, shown = tmp_path / os.fsdecode(b"a\xff"), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    write_features(path)
    monkeypatch.setattr(sys, "argv", ["beyondcls", "store", "verify", str(path)])
    monkeypatch.setattr(sys, "stdout", shown)
    with pytest.raises(SystemExit) as stop:
        run()
    shown.flush()
    assert (stop.value.code, b"/a\\udcff" in shown.buffer.getvalue()) == (0, True)


@pytest.mark.parametrize("by", ["option", "environment"])
def test_debug_shows_the_traceback_before_the_same_message(by, monkeypatch, capsys):
    monkeypatch.setenv("BEYONDCLS_DEBUG", "1")
    if by == "option":
        monkeypatch.delenv("BEYONDCLS_DEBUG")
    given = ["--debug"] * (by == "option")
    status, _, err = run_command(monkeypatch, capsys, *given, *COMMAND)
    assert status == FAILED
    trace, message = err[: err.rindex("error: ")], err[err.rindex("error: ") :]
    assert trace.startswith("Traceback")
    assert "describe" in trace
    assert sys.argv[1:] == list(COMMAND), "commands record how they were called"
    assert os.environ.get("BEYONDCLS_DEBUG") == (None if by == "option" else "1"), "the option is for one command"
    monkeypatch.setenv("BEYONDCLS_DEBUG", "0")
    assert run_command(monkeypatch, capsys, *COMMAND)[2] == message


def test_bash_completes(tmp_path):
    program = tmp_path / "beyondcls"
    start = "import sys; sys.argv[0] = 'beyondcls'; from pipelines.cli import run; run()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    program.chmod(0o755)
    script = 'eval "$(beyondcls --show-completion)"; COMP_WORDS=(beyondcls doc); COMP_CWORD=1; $(complete -p beyondcls |'
    script += " sed 's/.*-F \\([^ ]*\\) .*/\\1/') beyondcls; echo \"${COMPREPLY[@]}\""
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "BEYONDCLS_LOG": ""}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("doctor\n", "")
