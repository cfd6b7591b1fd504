import math

import pytest
import torch

from probe.metrics import METRICS, top_k_accuracy, weight_entropy

LOGITS = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.7], [0.2, 0.3, 0.1]])


def test_top_k_by_hand():
    labels = torch.tensor([1, 2, 2])
    assert top_k_accuracy(LOGITS, labels, 1) == pytest.approx(100 / 3)
    assert top_k_accuracy(LOGITS, labels, 2) == pytest.approx(200 / 3)
    assert METRICS["top5"](LOGITS, labels) == 100  # three classes only


def test_nan_logits_are_wrong():
    assert top_k_accuracy(torch.full((2, 3), math.nan), torch.tensor([0, 1])) == 0


def test_entropy_bounds():
    uniform, single = torch.full((1, 64), 1 / 64), torch.eye(64)[:1]
    assert weight_entropy(torch.cat([uniform, single])).tolist() == pytest.approx([math.log(64), 0])
