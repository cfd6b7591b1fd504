"""Where features go, as memory allows."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from store import FeatureStore, StoreError
from store.format.array import ArrayReader
from store.loading.placement import PLACEMENTS, choose_placement, free_memory
from tests.store.conftest import N

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PATCH, LABEL = 3 * 5 * 2, 8  # bytes of a row


@pytest.fixture(scope="module")
def arrays(written: Path) -> dict[str, list[ArrayReader]]:
    store = FeatureStore.open(written)
    return {"patch": [store.tokens("patch")], "label": [store.array("images/label")]}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Sets the free memory of CPU and GPU."""

    def change(cpu: float, gpu: float) -> None:
        monkeypatch.setattr("store.loading.placement.free_memory", lambda d: cpu if d.type == "cpu" else gpu)

    return change


@pytest.mark.parametrize("asked", ["memory", "stream", "device"])
def test_as_asked_for(arrays: dict[str, list[ArrayReader]], asked: str) -> None:
    for device in (CPU, GPU):
        places, reason = choose_placement(arrays, N, device, asked)  # type: ignore[arg-type]
        expected = "memory" if (asked, device) == ("device", CPU) else asked
        assert places == {"patch": expected, "label": expected}
        assert reason == f"{expected}, as asked for ({N * (PATCH + LABEL) / 1e6:.3g} MB)"


def test_unknown(arrays: dict[str, list[ArrayReader]]) -> None:
    with pytest.raises(StoreError, match=r"unknown placement 'steam'; did you mean 'stream'\? known: auto, device, memory"):
        choose_placement(arrays, N, CPU, "steam")  # type: ignore[arg-type]
    assert set(PLACEMENTS) == {"auto", "device", "memory", "stream"}


def test_the_first_that_fits(arrays: dict[str, list[ArrayReader]], free: Callable[[float, float], None]) -> None:
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


def test_fewer_rows_take_less(arrays: dict[str, list[ArrayReader]], free: Callable[[float, float], None]) -> None:
    free(N * (PATCH + LABEL), 0)
    assert choose_placement(arrays, N, CPU, "auto")[0]["patch"] == "stream"
    assert choose_placement(arrays, N // 2, CPU, "auto")[0]["patch"] == "memory"


def test_small_arrays_stay_in_memory(written: Path, free: Callable[[float, float], None]) -> None:
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


def test_free_memory_of_this_machine() -> None:
    assert free_memory(CPU) > 0
    if torch.cuda.is_available():
        assert free_memory(GPU) > 0
