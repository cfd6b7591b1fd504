"""Where features go, as memory allows: what the machine has, or what a control group leaves of it."""

import psutil
import pytest
import torch

from store import FeatureStore, StoreError
from store.loading import placement
from store.loading.placement import PLACEMENTS, choose_placement, free_memory
from tests.store.conftest import N

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PATCH, LABEL = 3 * 5 * 2, 8  # bytes of a row


@pytest.fixture(scope="module")
def arrays(written):
    store = FeatureStore.open(written)
    return {"patch": [store.tokens("patch")], "label": [store.array("images/label")]}


@pytest.fixture
def free(monkeypatch):
    """Sets the free memory of CPU and GPU."""

    def change(cpu, gpu):
        monkeypatch.setattr("store.loading.placement.free_memory", lambda d: cpu if d.type == "cpu" else gpu)

    return change


@pytest.mark.parametrize("asked", ["memory", "stream", "device"])
def test_as_asked_for(arrays, asked):
    for device in (CPU, GPU):
        places, reason = choose_placement(arrays, N, device, asked)
        expected = "memory" if (asked, device) == ("device", CPU) else asked
        assert places == {"patch": expected, "label": expected}
        assert reason == f"{expected}, as asked for ({N * (PATCH + LABEL) / 1e6:.3g} MB)"


def test_unknown(arrays):
    with pytest.raises(StoreError, match=r"unknown placement 'steam'; did you mean 'stream'\? known: auto, device, memory"):
        choose_placement(arrays, N, CPU, "steam")
    assert set(PLACEMENTS) == {"auto", "device", "memory", "stream"}


def test_the_first_that_fits(arrays, free):
    total = N * (PATCH + LABEL)
    for cpu, gpu, device, expected in (
        (1e12, total / 0.7 + 1, GPU, "device"),
        (1e12, total / 0.7 - 2, GPU, "memory"),
        (total * 2, 0, GPU, "memory"),
        (total * 2, 1e12, CPU, "memory"),
        (total * 2 - 1, 0, GPU, "stream"),
    ):
        free(cpu, gpu)
        places, reason = choose_placement(arrays, N, device, "auto")
        assert places["patch"] == expected
        assert reason.startswith(f"{expected}: ")


def test_fewer_rows_take_less(arrays, free):
    free(N * (PATCH + LABEL), 0)
    assert choose_placement(arrays, N, CPU, "auto")[0]["patch"] == "stream"
    assert choose_placement(arrays, N // 2, CPU, "auto")[0]["patch"] == "memory"


def test_small_arrays_stay_in_memory(written, free):
    """Beside a streamed one: an eighth of it at most, and a quarter of what is free."""
    store = FeatureStore.open(written)
    arrays = {"statistics": [store.array("statistics/cls_self/view0")], "valid": [store.array("images/valid")]}
    assert arrays["statistics"][0].nbytes == 48 * N
    free(40 * N, 0)
    places, reason = choose_placement(arrays, N, CPU, "auto")
    assert places == {"statistics": "stream", "valid": "memory"}
    assert reason.endswith("of free memory, valid in memory")
    free(3 * N, 0)
    assert choose_placement(arrays, N, CPU, "auto")[0] == {"statistics": "stream", "valid": "stream"}
    label = {"statistics": arrays["statistics"], "label": [store.array("images/label")]}  # a sixth
    free(40 * N, 0)
    assert choose_placement(label, N, CPU, "auto")[0] == {"statistics": "stream", "label": "stream"}


def test_free_memory_of_this_machine():
    assert free_memory(CPU) > 0
    if torch.cuda.is_available():
        assert free_memory(GPU) > 0


def _group(root, lines, folder, files):
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
def test_limit(lines, folder, files, tmp_path, monkeypatch):
    """1000 allowed, 700 used, 100 of these for files that give way."""
    _group(tmp_path, lines, folder, {**files, **STATISTICS})
    monkeypatch.setattr(placement, "ROOT", tmp_path)
    assert placement.free_memory(CPU) == 400


@pytest.mark.parametrize("limit", ["max\n", "", "9223372036854771712\n"])
def test_no_limit(limit, tmp_path, monkeypatch):
    _group(tmp_path, V2[0], "user/job", {**V2[1], "memory.max": limit, **STATISTICS})
    monkeypatch.setattr(placement, "ROOT", tmp_path)
    assert placement.free_memory(CPU) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_no_control_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "ROOT", tmp_path)
    assert placement.free_memory(CPU) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


@pytest.mark.parametrize(
    ("started", "share"), [({"WORLD_SIZE": "4"}, 4), ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}, 2), ({}, 1)]
)
def test_processes_share_a_machine(started, share, tmp_path, monkeypatch):
    _group(tmp_path, V2[0], "user/job", {**V2[1], **STATISTICS})
    monkeypatch.setattr(placement, "ROOT", tmp_path)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert placement.free_memory(CPU) == 400 // share


def test_what_torch_holds_on_a_gpu_and_does_not_use_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    assert placement.free_memory(torch.device("cuda", 1)) == 140
