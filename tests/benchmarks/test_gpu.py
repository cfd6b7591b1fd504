"""The one command for whoever has a GPU runs here, small: every part, the page, and what becomes of a part that fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_parts

SMALL = torch.device("cpu"), True
LOADER = "tests/store/test_loader.py"


def test_all_parts_run_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_process = gpu.in_process

    def run(name: str, device: str, quick: bool) -> gpu.Part:
        if name == "loader":  # as all do: in a process of its own
            return in_process(name, device, quick)
        lines, ratios, failure = gpu_parts.PARTS[name](*SMALL)
        return gpu.Part(ratios, lines, failure)

    assert {LOADER, "tests/kernels/test_attention.py", "tests/kernels/test_pooling.py"} <= {*gpu_parts.marked_files()}
    monkeypatch.setattr(gpu_parts, "marked_files", lambda: [LOADER])  # all are seen to be skipped where all tests run
    monkeypatch.setattr(gpu, "in_process", run)
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--out", str(tmp_path / "new" / "out")])
    with pytest.raises(SystemExit) as stop:
        gpu.main()
    assert not stop.value.code, capsys.readouterr().out
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed.keys() == gpu.EXPECTED.keys()
    assert all(value > 0 for value in printed.values())
    written = json.loads((tmp_path / "new" / "out" / "gpu.json").read_text())
    assert {name for name, part in written["parts"].items() if not part["failure"]} == gpu_parts.PARTS.keys()
    page = (tmp_path / "new" / "out" / "gpu.md").read_text()
    assert "this shows that the program runs, and says nothing about speed" in page
    assert LOADER in page  # each test that was skipped, with its reason
    assert "needs a CUDA device" in page


@pytest.mark.parametrize(
    ("measured", "quick", "says"), [(0.9, False, "| yes |"), (0.8, False, "| **no** |"), (0.8, True, "|  |")]
)
def test_what_holds_and_what_does_not(measured: float, quick: bool, says: str) -> None:
    page = gpu.page({"gpu": "NVIDIA H100"}, quick, {}, {"e2e_vs_bare": measured})
    assert f"| e2e_vs_bare | {measured} | ≥ 0.85 {says}" in page
    assert page.startswith("# NVIDIA H100\n")


def test_a_part_that_fails_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if command[0] == "git":
            return subprocess.CompletedProcess(command, 0, "abc\n", "")
        if "loader" in command:
            raise subprocess.TimeoutExpired(command, 60)
        if "grid" in command:
            return subprocess.CompletedProcess(command, -11, "", "Segmentation fault")
        part = {"ratios": {"e2e_vs_bare": 0.9}, "lines": [command[-3]], "failure": "1 failed" if "tests" in command else ""}
        return subprocess.CompletedProcess(command, 0, json.dumps({**part, "seconds": 0}), "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        gpu.main()
    assert stop.value.code == 1
    failures = {name: part["failure"] for name, part in json.loads((tmp_path / "gpu.json").read_text())["parts"].items()}
    assert failures == {"tests": "1 failed", "extraction": "", "loader": "stopped after 60 s", "grid": "Segmentation fault"}
    assert "    Segmentation fault" in (tmp_path / "gpu.md").read_text()
    assert "FAILED: stopped after 60 s" in capsys.readouterr().out


def test_all_parts_together_take_less_than_ten_minutes() -> None:
    assert gpu.SECONDS.keys() == gpu_parts.PARTS.keys()
    assert sum(gpu.SECONDS.values()) < 600
