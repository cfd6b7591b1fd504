"""What is installed, GPUs as torch tells of them, memory, Slurm as a scontrol of our own shows it."""

import shutil
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from pipelines.doctor import computer
from pipelines.doctor.machine import Machine

NEEDS = ["torch>=2.6", "zarr>=3.1", 'timm>=1.0.20; extra == "extract"', 's3fs; extra == "s3"', 'beyondcls[s3]; extra == "dev"']
INSTALLED = {"beyondcls": "0.1.0", "torch": "2.7.0+cu126", "zarr": "3.1.6", "timm": "1.0.22", "s3fs": "2026.1"}
IN_S3 = "encoders: {mae-b16: {}}\nstore: {root: 's3://bucket/x'}"


@pytest.mark.parametrize(
    ("changed", "params", "states", "named"),
    [
        ({}, IN_S3, ["ok"], "torch 2.7.0"),
        ({"torch": "2.5.1"}, "", ["ok", "problem"], "torch is 2.5.1, beyondcls needs >=2.6"),
        ({"zarr": None}, "", ["ok", "problem"], "zarr is missing"),
        ({"timm": "1.0.9"}, "", ["ok", "problem"], "timm is 1.0.9, beyondcls[extract] needs >=1.0.20"),
        ({"s3fs": None}, IN_S3, ["ok", "note"], "s3fs is missing, which beyondcls[s3]"),
        ({"timm": None, "s3fs": None}, "heads: {cls: {}}", ["ok"], ""),
        ({"python": ">=3.99"}, "", ["ok", "problem"], "expected >=3.99"),
    ],
)
def test_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict, params: str, states: list[str], named: str
) -> None:
    def version(name: str) -> str:
        if (installed := (INSTALLED | changed).get(name)) is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: NEEDS)
    monkeypatch.setattr(metadata, "metadata", lambda name: {"Requires-Python": changed.get("python", ">=3.11")})
    (tmp_path / "params.yaml").write_text(params or "{}")
    findings = list(computer.versions(Machine(tmp_path)))
    assert [finding.state for finding in findings] == states
    assert named in findings[-1].found
    assert all(finding.remedy for finding in findings[1:])


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Sets up a machine: what torch was built for, what it sees, and whether there is a device, in which environment."""

    def make(
        n: int = 0, build: Any = "12.6", generation: int = 8, warning: str = "", fails: str = "", device: str = "", **env: str
    ) -> None:
        def available() -> bool:
            if warning:
                warnings.warn(warning, UserWarning, stacklevel=1)
            return n > 0

        monkeypatch.setattr(computer, "GPU", tmp_path / device)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(torch.version, "hip", None, raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", available)
        found = {"device_count": n, "mem_get_info": (72e9, 80e9), "get_device_name": "A100"}
        for name, answer in (found | {"get_device_capability": (generation, 5)}).items():
            monkeypatch.setattr(torch.cuda, name, Mock(return_value=answer))
        real, error = torch.ones, RuntimeError(f"CUDA error: {fails}\nmore") if fails else None
        monkeypatch.setattr(torch, "ones", lambda *n, device=None: Mock(**{"add.side_effect": error}) if device else real(*n))

    return make


@pytest.mark.parametrize(
    ("machine", "states", "named"),
    [
        ({"n": 2}, ["ok", "ok"], "A100, 72 GB of 80 GB free, bf16"),
        ({"n": 1, "generation": 7}, ["ok"], "--amp fp16"),
        ({"n": 1, "fails": "no kernel image"}, ["problem"], "does not compute: CUDA error: no kernel image"),
        ({"build": None}, ["problem"], "built without CUDA"),
        ({"warning": "The NVIDIA driver is too old\nmore"}, ["problem"], ": The NVIDIA driver is too old"),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["note"], "CUDA_VISIBLE_DEVICES: "),
        ({"device": "none"}, ["note"], "built for CUDA 12.6"),
    ],
)
def test_gpu(gpus: Callable[..., None], machine: dict[str, Any], states: list[str], named: str) -> None:
    gpus(**machine)
    findings = list(computer.gpu(Machine()))
    assert [finding.state for finding in findings] == states
    assert named in findings[0].found


@pytest.mark.parametrize(
    ("free", "n", "shared", "states"),
    [
        *((3e9, 0, 64e6, ["ok"]), (1e9, 0, 64e6, ["note"]), (3e9, 1, 64e6, ["ok"])),
        *((3e9, 2, 64e6, ["ok", "note"]), (3e9, 2, 8e9, ["ok"])),  # /dev/shm matters between GPUs only
    ],
)
def test_memory(
    gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch, free: float, n: int, shared: float, states: list[str]
) -> None:
    gpus(n)
    monkeypatch.setattr("store.loading.placement.free_memory", lambda device: free)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Mock(total=shared))
    monkeypatch.setattr(computer, "SHARED_MEMORY", Path("/"))
    findings = list(computer.memory(Machine()))
    assert [finding.state for finding in findings] == states
    assert (findings[-1].remedy == "") == (findings[-1].state == "ok")


@pytest.mark.parametrize(
    ("config", "status", "states"),
    [
        ("JobRequeue = 1\nPreemptMode = GANG,SUSPEND", 0, ["ok"]),
        ("JobRequeue = 1\nPreemptMode = GANG,CANCEL", 0, ["note"]),
        ("JobRequeue = 0\nPreemptMode = OFF", 0, ["note"]),
        ("PreemptMode = OFF", 1, ["note"]),
        (None, 0, []),
    ],
)
def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, status: int, states: list[str]) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if config else str(tmp_path))
    if config:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat <<'X'\n{config}\nX\nexit {status}\n")
        (tmp_path / "scontrol").chmod(0o755)
    assert [finding.state for finding in computer.slurm(Machine(tmp_path))] == states
