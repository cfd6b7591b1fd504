"""Free memory: what the machine has, or what a control group leaves of it."""

from pathlib import Path

import psutil
import pytest
import torch

from store.loading import memory

CPU = torch.device("cpu")


def _group(root: Path, lines: str, folder: str, files: dict[str, str]) -> None:
    for name, content in {"proc/self/cgroup": lines, **{f"sys/fs/cgroup/{folder}/{n}": c for n, c in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


V1 = ("5:devices:/\n4:cpu,memory:/job\n", {"memory.limit_in_bytes": "1000\n", "memory.usage_in_bytes": "700"})
V2 = ("0::/user/job\n", {"memory.max": "1000\n", "memory.current": "700"})
STATISTICS = {"memory.stat": "anon 600\nactive_file 40\ninactive_file 60\n"}


@pytest.mark.parametrize(
    ("lines", "folder", "files"),
    [
        (V1[0], "memory/job", V1[1]),
        (V1[0], "memory", V1[1]),  # as a container sees it
        (V2[0], "user/job", V2[1]),
        (V2[0], "", V2[1]),
    ],
    ids=["v1", "v1-container", "v2", "v2-container"],
)
def test_limit(lines: str, folder: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 allowed, 700 used, 100 of these for files that give way."""
    _group(tmp_path, lines, folder, {**files, **STATISTICS})
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    assert memory.free_memory(CPU) == 400


@pytest.mark.parametrize("limit", ["max\n", "", "9223372036854771712\n"])
def test_no_limit(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _group(tmp_path, V2[0], "user/job", {**V2[1], "memory.max": limit, **STATISTICS})
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    assert memory.free_memory(CPU) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_no_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    assert memory.free_memory(CPU) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


@pytest.mark.parametrize(
    ("started", "share"), [({"WORLD_SIZE": "4"}, 4), ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}, 2), ({}, 1)]
)
def test_processes_share_a_machine(
    started: dict[str, str], share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _group(tmp_path, V2[0], "user/job", {**V2[1], **STATISTICS})
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert memory.free_memory(CPU) == 400 // share


def test_what_torch_holds_on_a_gpu_and_does_not_use_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    assert memory.free_memory(torch.device("cuda", 1)) == 140
