"""How long heads take, measured: which parts are counted for which heads. Times themselves are not tested."""

import pytest
import torch

from probe import rates
from probe.grid import HeadSpec
from probe.rates import HeadRate, measure_head
from probe.train import losses_of

CPU = torch.device("cpu")
SHAPES = {"patch": (6, 8), "cls": (8,)}


def measured(spec: HeadSpec, reads: tuple[str, ...], multilabel: bool = False) -> HeadRate:
    shapes = {**SHAPES, "attention/cls": (2, 6), "patch/block0": (6, 8)}
    return measure_head(spec, {kind: shapes[kind] for kind in reads}, 2, 3, multilabel, CPU)


@pytest.mark.parametrize(
    ("spec", "reads", "is_pooled", "width"),
    [
        (HeadSpec("cls"), ("cls",), True, 8),
        (HeadSpec("cls-average"), ("cls", "patch"), True, 16),
        (HeadSpec("cls-attention"), ("patch", "attention/cls"), True, 8),
        (HeadSpec("abmilp"), ("patch",), False, 8),
        (HeadSpec("abmilp", final_norm=True), ("patch",), False, 8),
        (HeadSpec("abmilp", {"blocks": [0]}), ("patch/block0",), False, 8),
    ],
)
def test_vectors_without_parameters_are_pooled_apart(
    spec: HeadSpec, reads: tuple[str, ...], is_pooled: bool, width: int
) -> None:
    rate = measured(spec, reads)
    assert (rate.is_pooled, rate.width) == (is_pooled, width)
    assert min(rate.learn_s, rate.judge_s) > 0


@pytest.mark.parametrize("multilabel", [False, True])
def test_losses_are_those_of_the_labels(multilabel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    dimensions = set()

    def noted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        dimensions.add(labels.ndim)
        return losses_of(logits, labels)

    monkeypatch.setattr(rates, "losses_of", noted)
    assert measured(HeadSpec("abmilp"), ("patch",), multilabel).learn_s > 0
    assert dimensions == {2 if multilabel else 1}


def test_random_numbers_stay_as_they_are() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    measured(HeadSpec("abmilp"), ("patch",))
    assert torch.equal(torch.rand(3), expected)
