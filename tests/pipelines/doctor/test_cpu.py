"""Cores, threads and memory."""

import os
from types import SimpleNamespace

import psutil
import pytest
import torch

from pipelines.doctor import cpu, memory
from pipelines.doctor.machine import Machine
from tests.pipelines.doctor.said import says


@pytest.fixture
def cores(monkeypatch, tmp_path):
    """Sets cores, torch's threads, and what the CPU has."""

    def make(n, n_threads, asked=None, capability="AVX2"):
        monkeypatch.setattr(cpu, "ROOT", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(n)), raising=False)
        monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        if asked:
            monkeypatch.setenv("OMP_NUM_THREADS", asked)

    return make


@pytest.mark.parametrize(
    ("n", "n_threads", "asked", "state", "words"),
    [
        (8, 8, None, "ok", ["cores for this process: 8, threads of torch: 8; AVX2 → "]),
        (2, 16, None, "note", [" → export OMP_NUM_THREADS=2:"]),
        (16, 1, "1", "note", ["(OMP_NUM_THREADS=1)", " → export OMP_NUM_THREADS=16,"]),
        (16, 8, None, "ok", []),  # one for each pair of hyperthreads: torch chose
    ],
)
def test_threads(cores, n, n_threads, asked, state, words):
    cores(n, n_threads, asked)
    says(cpu.check(Machine()), state, *words)


@pytest.mark.parametrize(
    ("there", "state", "words"),
    [(True, "ok", "float32 products by oneDNN"), (False, "note", "lacks oneDNN: install that of the default package index")],
)
def test_onednn(cores, monkeypatch, there, state, words):
    cores(4, 4, capability="AVX512")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: there)
    says(cpu.check(Machine()), state, words)


V1 = "cpu/cpu.cfs_quota_us"


@pytest.mark.parametrize(
    ("file", "content", "n"),
    [
        ("cpu.max", "150000 100000\n", 2),
        ("cpu.max", "max 100000\n", 8),
        ("none", "", 8),
        (V1, "50000", 1),
        (V1, "400000", 4),
        (V1, "-1", 8),
    ],
)
def test_containers_limit_cores(cores, tmp_path, file, content, n):
    cores(8, 8)
    (tmp_path / "sys/fs/cgroup/cpu").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000")
    (tmp_path / "sys/fs/cgroup" / file).write_text(content)
    assert cpu.cores() == n


@pytest.mark.parametrize(("free", "state", "limited"), [(60e9, "ok", False), (16e9, "ok", True), (1e9, "note", True)])
def test_memory(monkeypatch, free, state, limited):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=60e9, total=64e9))
    monkeypatch.setattr("store.loading.placement.free_memory", lambda device: free)
    finding = memory.check(Machine())
    assert finding.state == state
    assert ("container or scheduler" in finding.found) == limited
    assert ("--batch-size" in finding.remedy) == (state == "note")
    assert "the machine has 64 GB" in finding.found
