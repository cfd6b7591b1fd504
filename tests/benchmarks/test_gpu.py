"""The one command for whoever has a GPU: small on a bare machine, and what is left of parts that are stopped or killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_parts
from tests.ended import ended

BATCHES = "tests/store/test_gpu_batches.py"
# Hides every package but these and what they require, as on a machine that has no more.
BARE = """
import re, sys
from importlib import metadata
from importlib.machinery import PathFinder
kept = set()
def keep(name):
    name = re.sub("[-_.]+", "-", name).lower()
    if name not in kept:
        kept.add(name)
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            return
        for one in required:
            if "extra ==" not in one:
                keep(re.split("[ ;<>=!~(\\\\[]", one)[0])
for name in ("torch", "timm", "numpy", "zarr", "jaxtyping", "psutil", "xxhash", "beyondcls"):
    keep(name) if name != "beyondcls" else kept.add(name)
provided = {top: {re.sub("[-_.]+", "-", d).lower() for d in of} for top, of in metadata.packages_distributions().items()}
hidden = {top for top, of in provided.items() if not of & kept}
class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Others
"""


def test_all_parts_on_a_bare_machine_without_git(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BARE)
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{gpu.ROOT}"}
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--out", str(tmp_path / "new" / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=gpu.ROOT)
    assert done.returncode == 1, done.stderr  # of the tests alone
    ratios = json.loads(done.stdout.splitlines()[-1])
    assert ratios.pop("evidence") is False, "the CPU says nothing of a GPU"
    assert ratios.keys() == gpu.GOALS.keys()
    assert all(value > 0 for value in ratios.values())
    written = json.loads((tmp_path / "new" / "out" / "gpu.json").read_text())
    failures = {name: part["failure"] for name, part in written["parts"].items() if part["failure"]}
    assert failures == {"tests": "pytest is not installed: pip install pytest"}
    assert written["parts"].keys() == gpu_parts.PARTS.keys() == gpu.SECONDS.keys()
    assert written["machine"]["commit"] == ""
    assert written["machine"]["torch"] == torch.__version__.partition("+")[0] or torch.__version__
    page = (tmp_path / "new" / "out" / "gpu.md").read_text()
    assert "this shows that the program runs, and says nothing about speed" in page


def test_tests_that_need_a_gpu_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {BATCHES, "tests/kernels/test_attention.py", "tests/kernels/test_pooling.py"} <= {*gpu_parts.marked_files()}
    monkeypatch.setattr(gpu_parts, "marked_files", lambda: [BATCHES])
    findings = gpu.Findings()
    gpu_parts.tests(torch.device("cpu"), True, findings)
    assert BATCHES in "".join(findings.part.lines)  # each test that was skipped, with its reason
    assert "needs a CUDA device" in "".join(findings.part.lines)
    assert not findings.part.failure


@pytest.mark.parametrize(
    ("measured", "quick", "says"), [(0.9, False, "| yes |"), (0.8, False, "| **no** |"), (0.8, True, "|  |")]
)
def test_what_holds_and_what_does_not(measured: float, quick: bool, says: str) -> None:
    page = gpu.page({"gpu": "NVIDIA H100"}, quick, {"extraction": gpu.Part({"e2e_vs_bare": measured})})
    assert f"| e2e_vs_bare | {measured} | ≥ 0.85 {says}" in page
    assert page.startswith("# NVIDIA H100\n")


# A part that says something, starts a child of its own, and goes on for long.
HANGS = """
import subprocess, sys, time
from pathlib import Path
from benchmarks.gpu import Findings
findings = Findings(Path(sys.argv[1]))
findings.measured("e2e_vs_bare", 0.9)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
findings.say(str(child.pid))
"""


def starts(monkeypatch: pytest.MonkeyPatch, programs: dict[str, str]) -> None:
    """Have parts run these programs, which are given the file of their findings."""
    popen = subprocess.Popen

    def started(command: list[str], **options: object) -> object:
        if "--findings" not in command:
            return popen(command, **options)  # type: ignore[call-overload]
        name, file = command[3], command[command.index("--findings") + 1]
        return popen([sys.executable, "-c", programs[name], file], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", started)


def test_parts_that_end_early_leave_what_they_found_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = HANGS + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    starts(monkeypatch, {"extraction": HANGS + "time.sleep(600)", "loader": killed, "grid": HANGS + "raise ValueError(7)"})
    monkeypatch.setitem(gpu.SECONDS, "extraction", 4)
    with pytest.raises(SystemExit) as stop:
        gpu.main(["extraction", "loader", "grid", "--device", "cpu", "--out", str(tmp_path)])
    assert stop.value.code == 1
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert parts["extraction"]["failure"] == "stopped after 4 s"
    assert parts["loader"]["failure"] == "ended with status -9"
    assert "ValueError: 7" in parts["grid"]["failure"]
    assert all(part["ratios"] == {"e2e_vs_bare": 0.9} for part in parts.values())
    assert all(ended(int(part["lines"][0])) for part in parts.values())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"e2e_vs_bare": 0.9, "evidence": False}
    assert {file.name for file in tmp_path.iterdir()} == {
        "gpu.json", "gpu.md", "extraction.log", "loader.log", "grid.log"
    }  # fmt: skip


def test_all_parts_end_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts(monkeypatch, {"extraction": HANGS + "time.sleep(600)"})
    began = time.monotonic()
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cpu", "--out", str(tmp_path), "--seconds", "5"])
    assert time.monotonic() - began < 60
    failures = {name: part["failure"] for name, part in json.loads((tmp_path / "gpu.json").read_text())["parts"].items()}
    assert failures.pop("extraction").startswith("stopped after")
    assert set(failures.values()) == {"no time was left"}
    assert len(failures) == len(gpu.SECONDS) - 1


def test_a_signal_ends_what_runs(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys\nfrom benchmarks import gpu\npopen = subprocess.Popen\n"
        f"start = lambda command, **k: popen([sys.executable, '-c', {HANGS + 'time.sleep(600)'!r}, command[7]], **k)\n"
        f"gpu.machine = lambda device: {{'device': 'cpu'}}\nsubprocess.Popen = start\n"
        f"gpu.main(['extraction', '--device', 'cpu', '--out', {str(tmp_path)!r}])\n"
    )
    running = subprocess.Popen([sys.executable, "-c", program], cwd=gpu.ROOT)
    file = tmp_path / "extraction.json"
    while not (file.is_file() and json.loads(file.read_text())["lines"]):
        assert running.poll() is None
        time.sleep(0.05)
    pid = int(json.loads(file.read_text())["lines"][0])
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 143
    assert ended(pid)
