"""The command: what it prints, and its exit status."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipelines import doctor
from pipelines.doctor.command import run
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine
from store.errors import BeyondClsError

ROOT = Path(__file__).parents[3]
OK = Finding("a", "ok", "all [fine]")
NOTE = Finding("b", "note", "not quite", "pip install 'beyondcls[extract]'\nor leave it")
PROBLEM = Finding("c", "problem", "broken", "mend it")


def tell(monkeypatch, *findings):
    monkeypatch.setattr(doctor, "CHECKS", {f.name: (lambda machine, f=f: f) for f in findings})


def test_lines_remedies_and_status(monkeypatch, command):
    tell(monkeypatch, OK, NOTE)
    status, out, _ = command("doctor")
    assert status == 0
    assert out.splitlines() == [
        "✓ a  all [fine]",
        "! b  note: not quite",
        "    → pip install 'beyondcls[extract]'",
        "    → or leave it",
        "1 ok, 1 note, 0 problems",
    ]
    tell(monkeypatch, OK, NOTE, PROBLEM)
    status, out, _ = command("doctor")
    assert status == 1
    assert "✗ c  problem: broken\n    → mend it" in out


def test_json(monkeypatch, command):
    tell(monkeypatch, OK, PROBLEM)
    status, out, _ = command("doctor", "--json")
    assert status == 1
    assert json.loads(out) == [
        {"name": "a", "state": "ok", "found": "all [fine]", "remedy": ""},
        {"name": "c", "state": "problem", "found": "broken", "remedy": "mend it"},
    ]


def failing(error):
    def check(machine):
        raise error

    return check


@pytest.mark.parametrize(
    ("error", "found", "remedy"),
    [
        (BeyondClsError("x is 3, expected 4"), "x is 3, expected 4", ""),
        (ModuleNotFoundError("No module", name="torch"), "not checked: torch is not installed", "pip install torch"),
        (KeyError("https://u:hunter2@h"), "the check itself failed: KeyError: 'https://***@h'", "please report this line"),
    ],
)
def test_a_check_that_fails_is_a_problem(error, found, remedy):
    for network in ((), ("x",)):
        (finding,) = run({"x": failing(error)}, Machine(), network)
        assert finding == Finding("x", "problem", found, remedy)


def test_checks_without_a_question_have_no_line():
    assert list(run({"x": lambda machine: None, "a": lambda machine: OK}, Machine(), ("x",))) == [OK]


def test_network_is_asked_all_at_once_and_shown_in_order():
    together = threading.Barrier(2, timeout=20)  # broken, if one were asked after the other

    def check(name):
        def ask(machine):
            together.wait()
            return Finding(name, "ok", "")

        return ask

    checks = {"a": lambda machine: OK, "x": check("x"), "y": check("y")}
    assert [f.name + f.state for f in run(checks, Machine(), ("x", "y", "z"))] == ["aok", "xok", "yok"]


def test_a_new_machine(tmp_path):
    """Outside of any project, without timm, DVC and a network: notes, and no traceback."""
    script = (
        "import sys\n"
        "from importlib import metadata, util\n"
        "version, find_spec = metadata.version, util.find_spec\n"
        "away = ('timm', 'torchvision', 'webdataset', 'dvc')\n"
        "def absent(name):\n"
        "    if name in away: raise metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "metadata.version = absent\n"
        "sys.modules |= dict.fromkeys(away)\n"
        "sys.argv = ['beyondcls', 'doctor', '--offline', '--json']\n"
        "from pipelines.cli import run\n"
        "run()\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/nowhere", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    found = {f["name"]: f for f in json.loads(done.stdout)}
    assert "extract (no timm, torchvision, webdataset)" in found["extras"]["found"]
    assert found["dvc"]["state"] == "note"
    assert not {"hub", "official weights", "store.root"} & found.keys()
    assert done.returncode == int(any(f["state"] == "problem" for f in found.values()))


def test_a_silent_network_is_not_waited_for(tmp_path):
    """The hub, published weights and an object store that never answer, all at once."""
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "params.yaml").write_text("store: {root: 's3://bucket/folder'}")
        script = (
            "from pathlib import Path\n"
            "from pipelines.doctor import CHECKS, NETWORK, weights\n"
            "from pipelines.doctor.command import run\n"
            "from pipelines.doctor.machine import Machine\n"
            f"weights.SERVER = {address!r}\n"
            "findings = list(run({n: CHECKS[n] for n in NETWORK}, Machine(Path()), NETWORK))\n"
            "print([f.state for f in findings])\n"
        )
        environment = {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": address, "AWS_ENDPOINT_URL": address, "HOME": str(tmp_path)}
        environment |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "['problem', 'note', 'note', 'note']\n", done.stderr
    assert "Traceback" not in done.stderr
