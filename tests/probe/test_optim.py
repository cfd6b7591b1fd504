"""Optimisers against formulas written out in NumPy (the schedule: test_train.py)."""

import math

import numpy as np
import pytest
import torch

from probe.optim import LARS, OPTIMISERS

SHAPES = {"weight": (3, 4), "bias": (3,), "scalar": (), "deep": (2, 3, 2), "query": (1, 1, 6)}
M, STEPS = 4, 25
DECAYS = (0.0, 0.1, 0.02, 0.5)


def sgd(w, g, state, lr, decay, momentum, step):
    state["m"] = momentum * state.get("m", 0) + g + decay * w
    return w - lr * state["m"]


def lars(w, g, state, lr, decay, momentum, step):
    if w.ndim > 1:
        g = g + decay * w
        norms = math.sqrt((w**2).sum()), math.sqrt((g**2).sum())
        g = g * (0.001 * norms[0] / norms[1] if min(norms) > 0 else 1)
    state["m"] = momentum * state.get("m", 0) + g
    return w - lr * state["m"]


def adamw(w, g, state, lr, decay, momentum, step):
    state["m"] = momentum * state.get("m", 0) + (1 - momentum) * g
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * g**2
    w = w - lr * decay * w
    return w - lr * (state["m"] / (1 - momentum**step)) / (np.sqrt(state["v"] / (1 - 0.999**step)) + 1e-8)


RULES = {"sgd": sgd, "lars": lars, "adamw": adamw}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rule", RULES)
def test_steps_by_the_formula(rule, momentum):
    generator = np.random.default_rng(0)
    parameters = {name: generator.normal(size=(M, *shape)) for name, shape in SHAPES.items()}
    gradients = {name: generator.normal(size=(STEPS, M, *shape)) for name, shape in SHAPES.items()}
    rates = generator.uniform(0.01, 0.3, (STEPS, M))
    leaves = {n: torch.from_numpy(values.copy()).requires_grad_() for n, values in parameters.items()}
    optimiser = OPTIMISERS[rule](leaves, torch.tensor(DECAYS, dtype=torch.float64), momentum)
    for step in range(STEPS):
        for n, leaf in leaves.items():
            leaf.grad = torch.from_numpy(gradients[n][step].copy())
        optimiser.step(torch.from_numpy(rates[step]))
        assert all(leaf.grad is None for leaf in leaves.values())
    for name in SHAPES:
        for m in range(M):
            w, state = parameters[name][m], {}
            for step in range(STEPS):
                w = RULES[rule](w, gradients[name][step, m], state, rates[step, m], DECAYS[m], momentum, step + 1)
            np.testing.assert_allclose(leaves[name][m].detach().numpy(), w, rtol=1e-11, atol=1e-12)


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
