"""What holds for every optimiser of the registry."""

import pytest
import torch

from probe.optim import OPTIMISERS

M = 3
LR = torch.tensor([0.1, 0.01, 0.3], dtype=torch.float64)
DECAY = torch.tensor([0.0, 0.1, 0.01], dtype=torch.float64)

every = pytest.mark.parametrize("name", OPTIMISERS)


def leaves(members=range(M), dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (4, 2), "bias": (4,), "scalar": ()}
    values = {n: torch.randn(M, *shape, generator=generator, dtype=torch.float64) for n, shape in shapes.items()}
    return {n: v[list(members)].to(dtype).requires_grad_() for n, v in values.items()}


def make(name, members=range(M), dtype=torch.float64):
    return OPTIMISERS[name](leaves(members, dtype), DECAY[list(members)], 0.9)


def steps(optimiser, numbers, members=range(M)):
    """Some steps down Σ (w - 1)² + step · Σ w."""
    for number in numbers:
        for p in optimiser.parameters.values():
            p.grad = 2 * (p.detach() - 1) + number
        optimiser.step(LR[list(members)])
    return {n: p.detach().clone() for n, p in optimiser.parameters.items()}


@every
class TestEveryOptimiser:
    def test_members_take_the_steps_that_they_would_take_alone(self, name):
        together = steps(make(name), range(5))
        for m in range(M):
            alone = steps(make(name, [m]), range(5), [m])
            assert all(torch.equal(together[n][m], alone[n][0]) for n in together)

    def test_a_member_that_is_not_a_number_touches_no_other(self, name):
        optimiser, others = make(name), make(name)
        with torch.no_grad():
            for p in optimiser.parameters.values():
                p[1] = torch.nan
        ours, theirs = steps(optimiser, range(3)), steps(others, range(3))
        assert all(torch.equal(ours[n][[0, 2]], theirs[n][[0, 2]]) for n in ours)

    def test_goes_on_with_some_members(self, name):
        whole, fewer = make(name), make(name)
        steps(whole, range(3))
        steps(fewer, range(3))
        fewer.keep({n: p.detach()[[2, 0]].clone().requires_grad_() for n, p in fewer.parameters.items()}, torch.tensor([2, 0]))
        expected, result = steps(whole, range(3, 6)), steps(fewer, range(3, 6), [2, 0])
        assert all(torch.equal(result[n], expected[n][[2, 0]]) for n in expected)

    def test_state_is_all_that_it_remembers(self, name):
        first, second = make(name), make(name)
        steps(first, range(3))
        for target, source in ((second.parameters, first.parameters), (second.state, first.state)):
            for key, values in source.items():
                assert len(values) == M
                target[key].detach().copy_(values.detach())
        ours, theirs = steps(first, range(3, 6)), steps(second, range(3, 6))
        assert all(torch.equal(ours[n], theirs[n]) for n in ours)

    def test_leaves_alone_what_has_no_gradient(self, name):
        optimiser = make(name)
        before = {n: p.detach().clone() for n, p in optimiser.parameters.items()}
        optimiser.step(LR)
        assert all(torch.equal(p, before[n]) for n, p in optimiser.parameters.items())

    def test_keeps_the_precision_of_the_parameters(self, name):
        optimiser = make(name, dtype=torch.float32)
        assert all(p.dtype == torch.float32 for p in steps(optimiser, range(2)).values())
        assert all(v.dtype == torch.float32 for n, v in optimiser.state.items() if n != "steps")
