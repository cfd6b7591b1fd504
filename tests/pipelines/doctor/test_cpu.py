"""Cores, threads and memory."""

import os
from types import SimpleNamespace

import psutil
import pytest
import torch

from pipelines.doctor import cpu, memory
from pipelines.doctor.here import Here


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


def test_threads_fit(cores):
    cores(8, 8)
    finding = cpu.check(Here())
    assert (finding.state, finding.found) == ("ok", "cores for this process: 8, threads of torch: 8; AVX2")


def test_too_many_threads(cores):
    cores(2, 16)
    finding = cpu.check(Here())
    assert finding.state == "note"
    assert finding.remedy.startswith("export OMP_NUM_THREADS=2:")


def test_too_few_threads(cores):
    cores(16, 1, asked="1")
    finding = cpu.check(Here())
    assert finding.state == "note"
    assert "(OMP_NUM_THREADS=1)" in finding.found
    assert finding.remedy.startswith("export OMP_NUM_THREADS=16,")


def test_threads_that_torch_chose_are_left_alone(cores):
    cores(16, 8)  # one for each pair of hyperthreads
    assert cpu.check(Here()).state == "ok"


def test_onednn(cores, monkeypatch):
    cores(4, 4, capability="AVX512")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert "float32 products by oneDNN" in cpu.check(Here()).found
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    finding = cpu.check(Here())
    assert finding.state == "note"
    assert "lacks oneDNN: install that of the default package index" in finding.remedy


@pytest.mark.parametrize(("files", "n"), [({"cpu.max": "150000 100000\n"}, 2), ({"cpu.max": "max 100000\n"}, 8), ({}, 8)])
def test_containers_limit_cores(cores, tmp_path, files, n):
    cores(8, 8)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / "sys/fs/cgroup" / name).write_text(content)
    assert cpu.cores() == n


@pytest.mark.parametrize(("quota", "n"), [("50000", 1), ("400000", 4), ("-1", 8)])
def test_first_version_of_control_groups(cores, tmp_path, quota, n):
    cores(8, 8)
    folder = tmp_path / "sys/fs/cgroup/cpu"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text("100000")
    assert cpu.cores() == n


@pytest.mark.parametrize(("free", "state", "limited"), [(60e9, "ok", False), (16e9, "ok", True), (1e9, "note", True)])
def test_memory(monkeypatch, free, state, limited):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=60e9, total=64e9))
    monkeypatch.setattr("store.memory.free_memory", lambda device: free)
    finding = memory.check(Here())
    assert finding.state == state
    assert ("container or scheduler" in finding.found) == limited
    assert ("--batch-size" in finding.remedy) == (state == "note")
    assert "the machine has 64 GB" in finding.found
