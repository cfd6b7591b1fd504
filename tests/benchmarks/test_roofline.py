"""The limit of a training step: what it counts is what training does, and it is the slower of reading and multiplying."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import roofline
from benchmarks.roofline import CLASSES, Machine, Steps, Work
from probe.pooling import softmax_pool

CPU = torch.device("cpu")


def test_the_products_of_pooling_are_those_that_are_counted() -> None:
    tokens = torch.randn(4, 6, 8).half()
    queries = torch.randn(3, 8, requires_grad=True)
    with FlopCounterMode(display=False) as counted:
        softmax_pool(tokens, queries)[0].square().sum().backward()
    assert Work.of(3, tokens) == Work(nbytes=2 * 4 * 6 * 8 * 2, flops=counted.get_total_flops())


def test_a_step_takes_its_share_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(torch.randn(3, 4, 6, 8).half(), torch.randint(CLASSES, (4,)))
    epochs = []

    def timed(epoch, device):  # type: ignore[no-untyped-def]
        epochs.append(epoch())
        return 6.0

    monkeypatch.setattr(roofline, "fastest", timed)
    assert roofline.seconds_of_step(2, steps) == 2.0
    assert len(epochs) == 1
    assert steps.n_rows == 12
    assert [batch["patch"].data_ptr() for batch in steps.epoch()] == [batch.data_ptr() for batch in steps.batches]


@pytest.mark.parametrize(
    ("machine", "share", "binds"),
    [
        (Machine(1e6, 1e30), 2 * 2 * 32 * 196 * 768 / 1e6 / 50, "memory"),
        (Machine(1e30, 1e7), 8 * 32 * 196 * 768 / 1e7 / 50, "multiplying"),
    ],
    ids=["memory", "products"],
)
def test_the_slower_of_reading_and_multiplying_is_the_limit(
    machine: Machine, share: float, binds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(roofline, "measured", lambda device, nbytes: machine)
    monkeypatch.setattr(roofline, "seconds_of_step", lambda members, steps: 50.0)
    shares = roofline.shares_of_limit(CPU, quick=True)
    assert shares["step1_dim768_vs_limit"] == pytest.approx(share)
    assert len(shares) == len(roofline.CASES)
    assert f"{share:.0%} of the limit, which {binds} sets" in capsys.readouterr().out


def test_rates_are_measured() -> None:
    machine = roofline.measured(CPU, 1 << 20)
    assert machine.nbytes_per_s > 0
    assert machine.flops_per_s > 0
