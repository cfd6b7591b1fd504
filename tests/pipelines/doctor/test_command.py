"""The command: what it prints, and its exit status."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines import doctor
from pipelines.doctor.command import run
from pipelines.doctor.machine import Finding, Machine
from store.errors import BeyondClsError

ROOT = Path(__file__).parents[3]
OK = Finding("a", "ok", "all [fine]", "not shown")
NOTE = Finding("b", "note", "not quite", "pip install 'beyondcls[extract]'\nor leave it")
PROBLEM = Finding("c", "problem", "broken", "mend it")


@pytest.mark.parametrize(("findings", "status"), [((OK, NOTE), 0), ((OK, NOTE, PROBLEM), 1)])
def test_lines_remedies_and_status(
    monkeypatch: pytest.MonkeyPatch, command: Callable, findings: tuple[Finding, ...], status: int
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", {f.name: (lambda machine, f=f: [f]) for f in findings})
    given, out, _ = command("doctor")
    assert given == status
    lines = ["✓ a  all [fine]", "! b  note: not quite", "    → pip install 'beyondcls[extract]'", "    → or leave it"]
    assert out.splitlines()[:4] == lines
    assert out.splitlines()[-1] == f"1 ok, 1 note, {status} problem{'' if status else 's'}"
    given, out, _ = command("doctor", "--json")
    assert (given, [one["name"] for one in json.loads(out)]) == (status, [finding.name for finding in findings])
    assert json.loads(out)[0] == {"name": "a", "state": "ok", "found": "all [fine]", "remedy": ""}


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (BeyondClsError("x is 3, expected 4"), "x is 3, expected 4"),
        (ModuleNotFoundError("No module", name="torch"), "torch is not installed"),
        (KeyError("https://u:hunter2@h"), "KeyError: 'https://***@h'"),
    ],
)
def test_a_check_that_fails_is_a_problem(error: Exception, found: str) -> None:
    def check(machine: Machine) -> Iterator[Finding]:
        yield OK
        raise error

    first, failed, again = run({"x": check, "y": check}, Machine())  # what stops both is found once
    assert first is again is OK
    assert failed.state == "problem"
    assert found in failed.found


def test_a_check_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    found = list(run({"x": lambda machine: [OK] * never.wait(), "a": lambda machine: [OK]}, Machine(), 0.05))
    never.set()
    assert [(one.name, one.state) for one in found] == [("x", "problem"), ("a", "ok")]


SCRIPT = """
import sys
from importlib import metadata, util
version, find_spec = metadata.version, util.find_spec
away = ('timm', 'torchvision', 'webdataset', 'dvc')
def absent(name):
    if name in away: raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version, util.find_spec = absent, lambda name: None if name in away else find_spec(name)
sys.modules |= dict.fromkeys(away)
sys.argv = ['beyondcls', 'doctor', '--offline', '--json']
from pipelines.cli import run
run()
"""


def test_a_new_machine(tmp_path: Path) -> None:
    """Outside of any project, without timm, DVC and a network: no traceback."""
    (tmp_path / "params.yaml").write_text("encoders: {mae-b16: {}}")
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/nowhere", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    found = {(one["name"], one["state"], one["found"].partition(" ")[0]) for one in json.loads(done.stdout)}
    assert {("versions", "note", "timm"), ("versions", "note", "webdataset"), ("dvc", "note", "DVC")} <= found
    assert not {"weights", "store.root", "slurm"} & {name for name, *_ in found}
    assert done.returncode == int(any(state == "problem" for _, state, _ in found))
