"""Where a stage computes."""

import pytest
import torch

from pipelines.process.device import choose_device
from store import BeyondClsError


def test_auto_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cuda:3") == torch.device("cuda:3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")


def test_what_cannot_be(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BeyondClsError, match="unknown device 'gpu'; expected auto, cpu, cuda"):
        choose_device("gpu")
    with pytest.raises(BeyondClsError, match="device is 'cuda', but torch sees no GPU here; use --device cpu"):
        choose_device("cuda")


@pytest.mark.parametrize("name", ["mps", "mps:0", "xpu", "xpu:1", "hpu", "meta", "vulkan"])
def test_other_kinds_are_refused_before_anything_is_moved_there(name, monkeypatch):
    """Also where torch has them: what was never tried on a device is not promised for it."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(BeyondClsError, match=f"device is '{name}', but the program computes on cpu and cuda alone; use"):
        choose_device(name)


@pytest.mark.parametrize(("n", "remedy"), [(1, "torch sees 1 GPU here"), (9, "torch sees 9 GPUs here; use cuda:0 to cuda:8")])
def test_a_gpu_that_is_not_there(n, remedy, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n)
    assert choose_device(f"cuda:{n - 1}").index == n - 1
    for index in (n, n + 5):
        with pytest.raises(BeyondClsError, match=f"device is 'cuda:{index}', but {remedy}"):
            choose_device(f"cuda:{index}")
