"""Optimisers where rounding or a norm of zero counts; their formulas: test_train.py."""

import numpy as np
import pytest
import torch

from probe.optim import LARS, OPTIMISERS


def test_first_adam_step_is_the_learning_rate_in_float32():
    leaf = torch.zeros(1, 2, 2, requires_grad=True)
    leaf.grad = torch.full((1, 2, 2), 0.5)
    OPTIMISERS["adamw"]({"weight": leaf}, torch.zeros(1, dtype=torch.float64), 0.9).step(torch.tensor([0.1]).double())
    np.testing.assert_allclose(leaf.detach(), -0.1, rtol=1e-6)  # 1 - 0.999 in float32 would be off by 1e-5


@pytest.mark.parametrize(("w", "g", "after"), [([0, 0], [1, 2], [-1, -2]), ([1, 2], [0, 0], [1, 2])])
def test_the_trust_ratio_is_one_where_a_norm_is_zero(w, g, after):
    leaf = torch.tensor([[w]], dtype=torch.float64, requires_grad=True)
    leaf.grad = torch.tensor([[g]], dtype=torch.float64)
    LARS({"w": leaf}, torch.zeros(1, dtype=torch.float64), 0.0).step(torch.ones(1, dtype=torch.float64))
    assert leaf.tolist() == [[after]]
