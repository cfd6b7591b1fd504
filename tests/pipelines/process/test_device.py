"""Where a stage computes."""

import pytest
import torch

from pipelines.process.device import choose_device
from store import BeyondClsError


def test_auto_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
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
