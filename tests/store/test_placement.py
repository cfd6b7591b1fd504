"""Where features go, as memory allows: what the machine has, or what a control group leaves of it."""

import psutil
import pytest
import torch

from store import FeatureStore, StoreError
from store.loading import placement
from store.loading.placement import choose_placement, free_memory
from tests.store.conftest import N

CPU, GPU = torch.device("cpu"), torch.device("cuda")
TOTAL = N * (3 * 5 * 2 + 8)  # bytes of patch tokens and labels


@pytest.fixture(scope="module")
def arrays(written):
    store = FeatureStore.open(written)
    return {"patch": [store.tokens("patch")], "label": [store.array("images/label")]}


@pytest.fixture
def free(monkeypatch):
    names = "store.loading.placement.free_memory"
    return lambda cpu, gpu=0: monkeypatch.setattr(names, lambda device: cpu if device.type == "cpu" else gpu)


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("asked", ["memory", "stream", "device"])
def test_as_asked_for(arrays, asked, device):
    places, reason = choose_placement(arrays, N, device, asked)
    expected = "memory" if (asked, device) == ("device", CPU) else asked
    assert places == {"patch": expected, "label": expected}
    assert reason == f"{expected}, as asked for ({TOTAL / 1e6:.3g} MB)"


def test_unknown(arrays):
    with pytest.raises(StoreError, match=r"unknown placement 'steam'; did you mean 'stream'"):
        choose_placement(arrays, N, CPU, "steam")


@pytest.mark.parametrize(
    ("cpu", "gpu", "device", "n", "expected"),
    [
        (1e12, TOTAL / 0.7 + 1, GPU, N, "device"),
        (1e12, TOTAL / 0.7 - 2, GPU, N, "memory"),
        (TOTAL * 2, 1e12, CPU, N, "memory"),
        (TOTAL * 2 - 1, 0, GPU, N, "stream"),
        (TOTAL, 0, CPU, N, "stream"),
        (TOTAL, 0, CPU, N // 2, "memory"),  # fewer rows take less
    ],
)
def test_the_first_that_fits(arrays, free, cpu, gpu, device, n, expected):
    free(cpu, gpu)
    places, reason = choose_placement(arrays, n, device, "auto")
    assert places["patch"] == expected
    assert reason.startswith(f"{expected}: ")


@pytest.mark.parametrize(
    ("cpu", "small", "expected"),
    [(40 * N, "images/valid", "memory"), (3 * N, "images/valid", "stream"), (40 * N, "images/label", "stream")],
    ids=["fits", "a third of what is free", "a sixth of the other"],
)
def test_small_arrays_stay_in_memory(written, free, cpu, small, expected):
    """Beside a streamed one: an eighth of it at most, and a quarter of what is free."""
    names = ("statistics/cls_self/view0", small)  # of 48 bytes a row, and 1 or 8
    free(cpu)
    places, reason = choose_placement({name: [FeatureStore.open(written).array(name)] for name in names}, N, CPU, "auto")
    assert places == {names[0]: "stream", small: expected}
    assert reason.endswith(f"of free memory, {small} in memory") == (expected == "memory")


# -- free memory -------------------------------------------------------------------------------------------------------

V1 = ("5:devices:/\n4:cpu,memory:/job\n", {"memory.limit_in_bytes": "1000\n", "memory.usage_in_bytes": "700"})
V2 = ("0::/user/job\n", {"memory.max": "1000\n", "memory.current": "700"})


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Has this process be in a control group; 100 bytes of what it uses are of files that give way."""
    monkeypatch.setattr(placement, "ROOT", tmp_path)

    def put(lines, folder, files):
        files = {**files, "memory.stat": "anon 600\nactive_file 40\ninactive_file 60\n"}
        for name, text in {"proc/self/cgroup": lines, **{f"sys/fs/cgroup/{folder}/{n}": t for n, t in files.items()}}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return put


@pytest.mark.parametrize(
    ("of", "folder"),
    [(V1, "memory/job"), (V1, "memory"), (V2, "user/job"), (V2, "")],
    ids=["v1", "v1 seen from a container", "v2", "v2 seen from a container"],
)
def test_limit(of, folder, group):
    group(of[0], folder, of[1])
    assert free_memory(CPU) == 400


@pytest.mark.parametrize("limit", ["max\n", "", "9223372036854771712\n"])
def test_no_limit(limit, group):
    group(V2[0], "user/job", {**V2[1], "memory.max": limit})
    assert free_memory(CPU) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


@pytest.mark.parametrize(
    ("started", "share"), [({"WORLD_SIZE": "4"}, 4), ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}, 2), ({}, 1)]
)
def test_processes_share_a_machine(started, share, group, monkeypatch):
    group(V2[0], "user/job", V2[1])
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert free_memory(CPU) == 400 // share


def test_what_torch_holds_on_a_gpu_and_does_not_use_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    assert free_memory(torch.device("cuda", 1)) == 140
