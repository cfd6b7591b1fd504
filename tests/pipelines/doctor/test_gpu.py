"""GPUs: as torch tells of them, faked at its functions."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from pipelines.doctor import gpu, shared_memory
from pipelines.doctor.machine import Machine
from tests.pipelines.doctor.said import says


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Sets up a machine: whether there is a device file, what torch was built for, and what it sees."""

    def make(device=True, build="12.6", n=0, free=0.9, capability=(8, 0), warning=None, driver="550.54.15"):
        monkeypatch.setattr(gpu, "ROOT", tmp_path)
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        if device:
            (tmp_path / "dev").mkdir()
            (tmp_path / "dev/nvidia0").touch()
            (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
            text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Thu Feb 22 2024\n"
            (tmp_path / "proc/driver/nvidia/version").write_text(text)

        def available():
            if warning:
                warnings.warn(warning, UserWarning, stacklevel=1)
            return n > 0

        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(torch.version, "hip", None, raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: n)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (int(free * 80e9), int(80e9)))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "NVIDIA A100")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: capability)
        monkeypatch.setattr(torch, "ones", lambda *shape, device: torch.zeros(*shape))

    return make


def test_gpus_that_work(machine):
    machine(n=2)
    finding = gpu.check(Machine())
    assert (finding.state, finding.remedy) == ("ok", "")
    assert finding.found == "2 x NVIDIA A100, 72 GB of 80 GB free, bf16 (torch for CUDA 12.6, driver 550.54.15)"


TOO_OLD = "CUDA initialization: The NVIDIA driver on your system is too old"
UPDATE = "update the driver to one for CUDA 12.6, or install a torch built for the driver you have"
MACHINES = {
    "old GPU": ({"n": 1, "capability": (7, 5)}, "ok", ["no bf16: use --amp fp16"]),
    "others use it": ({"n": 1, "free": 0.05}, "note", ["others use cuda:0"]),
    "torch without CUDA": (
        {"build": None},
        "problem",
        [
            "there is a GPU with driver 550.54.15, but torch",
            "was built without CUDA",
            "pip install --force-reinstall torch (from the default package index, or as",
        ],
    ),
    "driver too old": ({"warning": f"{TOO_OLD}\nmore"}, "problem", [f"cannot use it: {TOO_OLD} → {UPDATE}"]),
    "no GPU": ({"device": False}, "note", ["built for CUDA 12.6 → ", "beyondcls plan"]),
    "no GPU and no CUDA": ({"device": False, "build": None}, "note", ["built without CUDA → ", "beyondcls plan"]),
}


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_has_its_finding(machine, name):
    options, state, words = MACHINES[name]
    machine(**options)
    says(gpu.check(Machine()), state, *words)


@pytest.mark.parametrize(
    ("said", "remedy"), [("no kernel image is available", "built for this GPU"), ("out of memory", "who uses")]
)
def test_gpu_that_does_not_compute(machine, monkeypatch, said, remedy):
    machine(n=1)

    def fail(number):
        raise RuntimeError(f"CUDA error: {said}\nmore")

    monkeypatch.setattr(torch, "ones", lambda *shape, device: SimpleNamespace(add=fail))  # memory can be had all the same
    says(gpu.check(Machine()), "problem", f"cuda:0, NVIDIA A100, does not compute: CUDA error: {said} → ", remedy)


def test_hidden_gpu(machine, monkeypatch):
    machine()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    says(gpu.check(Machine()), "note", "CUDA_VISIBLE_DEVICES= hides GPUs from torch → unset CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(("n", "nbytes", "state"), [(0, 64e6, "ok"), (1, 64e6, "ok"), (2, 64e6, "note"), (2, 8e9, "ok")])
def test_shared_memory_matters_between_gpus_only(machine, monkeypatch, tmp_path, n, nbytes, state):
    machine(n=n)
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"total": nbytes}))
    finding = shared_memory.check(Machine())
    assert finding.state == state
    assert ("--shm-size" in finding.remedy) == (state == "note")
    assert ("does not matter" in finding.found) == (n < 2)


def test_no_shared_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path / "none")
    assert shared_memory.check(Machine()) is None
