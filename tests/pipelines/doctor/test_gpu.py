"""GPUs: as torch tells of them, faked at its functions."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from pipelines.doctor import gpu, shared_memory
from pipelines.doctor.here import Here


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
    finding = gpu.check(Here())
    assert (finding.state, finding.remedy) == ("ok", "")
    assert finding.found == "2 x NVIDIA A100, 72 GB of 80 GB free, bf16 (torch for CUDA 12.6, driver 550.54.15)"


def test_old_gpu_has_no_bf16(machine):
    machine(n=1, capability=(7, 5))
    assert "no bf16: use --amp fp16" in gpu.check(Here()).found


def test_gpu_that_others_use(machine):
    machine(n=1, free=0.05)
    finding = gpu.check(Here())
    assert finding.state == "note"
    assert "others use cuda:0" in finding.remedy


@pytest.mark.parametrize(
    ("said", "remedy"), [("no kernel image is available", "built for this GPU"), ("out of memory", "who uses")]
)
def test_gpu_that_does_not_compute(machine, monkeypatch, said, remedy):
    machine(n=1)

    def fail(number):
        raise RuntimeError(f"CUDA error: {said}\nmore")

    monkeypatch.setattr(torch, "ones", lambda *shape, device: SimpleNamespace(add=fail))  # memory can be had all the same
    finding = gpu.check(Here())
    assert finding.state == "problem"
    assert finding.found == f"cuda:0, NVIDIA A100, does not compute: CUDA error: {said}"
    assert remedy in finding.remedy


def test_torch_without_cuda_on_a_machine_with_a_gpu(machine):
    machine(build=None)
    finding = gpu.check(Here())
    assert finding.state == "problem"
    assert "there is a GPU with driver 550.54.15, but torch" in finding.found
    assert "was built without CUDA" in finding.found
    assert "pip install --force-reinstall torch (from the default package index, or as" in finding.remedy


def test_driver_too_old(machine):
    machine(warning="CUDA initialization: The NVIDIA driver on your system is too old\nmore")
    finding = gpu.check(Here())
    assert finding.state == "problem"
    assert finding.found.endswith("cannot use it: CUDA initialization: The NVIDIA driver on your system is too old")
    assert finding.remedy == "update the driver to one for CUDA 12.6, or install a torch built for the driver you have"


def test_hidden_gpu(machine, monkeypatch):
    machine()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = gpu.check(Here())
    assert finding.state == "note"
    assert finding.found == "CUDA_VISIBLE_DEVICES= hides GPUs from torch"
    assert finding.remedy.startswith("unset CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(("build", "words"), [("12.6", "built for CUDA 12.6"), (None, "built without CUDA")])
def test_no_gpu_is_a_note_with_what_it_costs(machine, build, words):
    machine(device=False, build=build)
    finding = gpu.check(Here())
    assert finding.state == "note"
    assert finding.found.endswith(words)
    assert "beyondcls plan" in finding.remedy


@pytest.mark.parametrize(("n", "nbytes", "state"), [(0, 64e6, "ok"), (1, 64e6, "ok"), (2, 64e6, "note"), (2, 8e9, "ok")])
def test_shared_memory_matters_between_gpus_only(machine, monkeypatch, tmp_path, n, nbytes, state):
    machine(n=n)
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"total": nbytes}))
    finding = shared_memory.check(Here())
    assert finding.state == state
    assert ("--shm-size" in finding.remedy) == (state == "note")
    assert ("does not matter" in finding.found) == (n < 2)


def test_no_shared_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path / "none")
    assert shared_memory.check(Here()) is None
