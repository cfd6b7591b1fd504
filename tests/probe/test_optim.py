"""Optimisers and schedule against formulas written out in NumPy, and against torch's."""

import math

import numpy as np
import pytest
import torch

from probe.optim import LARS, OPTIMISERS, learning_rate

SHAPES = {"weight": (3, 4), "bias": (3,), "scalar": (), "deep": (2, 3, 2), "query": (1, 1, 6)}
M, STEPS = 4, 100
DECAYS = (0.0, 0.1, 0.02, 0.5)


def given(seed=0, dtype=np.float64):
    """Parameters of M members, and gradients of STEPS steps; name -> [M, ...], [STEPS, M, ...]."""
    generator = np.random.default_rng(seed)
    parameters = {name: generator.normal(size=(M, *shape)).astype(dtype) for name, shape in SHAPES.items()}
    gradients = {name: generator.normal(size=(STEPS, M, *shape)).astype(dtype) for name, shape in SHAPES.items()}
    rates = generator.uniform(0.01, 0.3, (STEPS, M))
    return parameters, gradients, rates


def ours(name, parameters, gradients, rates, momentum, decays=DECAYS):
    leaves = {n: torch.from_numpy(values.copy()).requires_grad_() for n, values in parameters.items()}
    optimiser = OPTIMISERS[name](leaves, torch.tensor(decays, dtype=torch.float64), momentum)
    for step in range(len(rates)):
        for n, leaf in leaves.items():
            leaf.grad = torch.from_numpy(gradients[n][step].copy())
        optimiser.step(torch.from_numpy(rates[step]))
        assert all(leaf.grad is None for leaf in leaves.values())
    return {n: leaf.detach().numpy() for n, leaf in leaves.items()}


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
def test_hundred_steps_by_the_formula(rule, momentum):
    parameters, gradients, rates = given()
    result = ours(rule, parameters, gradients, rates, momentum)
    for name in SHAPES:
        for m in range(M):
            w, state = parameters[name][m], {}
            for step in range(STEPS):
                w = RULES[rule](w, gradients[name][step, m], state, rates[step, m], DECAYS[m], momentum, step + 1)
            np.testing.assert_allclose(result[name][m], w, rtol=1e-11, atol=1e-12)


def test_first_adam_step_is_the_learning_rate_in_float32():
    parameters = {"weight": np.zeros((1, 2, 2), np.float32)}
    gradients = {"weight": np.full((1, 1, 2, 2), 0.5, np.float32)}
    result = ours("adamw", parameters, gradients, np.array([[0.1]]), 0.9, (0.0,))
    np.testing.assert_allclose(result["weight"], -0.1, rtol=1e-6)  # 1 - 0.999 in float32 would be off by 1e-5


class TestTrustRatio:
    def step(self, w, g, decay=0.0):
        leaf = torch.tensor(w, dtype=torch.float64)[None].requires_grad_()
        leaf.grad = torch.tensor(g, dtype=torch.float64)[None]
        LARS({"w": leaf}, torch.tensor([decay], dtype=torch.float64), 0.0).step(torch.ones(1, dtype=torch.float64))
        return leaf[0].detach()

    def test_is_one_where_a_norm_is_zero(self):
        assert torch.equal(self.step([[0.0, 0.0]], [[1.0, 2.0]]), torch.tensor([[-1.0, -2.0]]).double())
        assert torch.equal(self.step([[1.0, 2.0]], [[0.0, 0.0]]), torch.tensor([[1.0, 2.0]]).double())


class TestSchedule:
    def test_by_hand(self):
        assert learning_rate(0, 0.4, 100, 10) == 0
        assert learning_rate(2.5, 0.4, 100, 10) == pytest.approx(0.1)
        assert learning_rate(10, 0.4, 100, 10) == pytest.approx(0.4)
        assert learning_rate(32.5, 0.4, 100, 10) == pytest.approx(0.2 * (1 + math.sqrt(0.5)))
        assert learning_rate(55, 0.4, 100, 10) == pytest.approx(0.2)
        assert learning_rate(100, 0.4, 100, 10) == pytest.approx(0)

    def test_without_warm_up_the_first_step_has_all_of_it(self):
        assert learning_rate(0, 0.4, 100, 0) == pytest.approx(0.4)
