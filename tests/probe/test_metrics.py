"""Measures by hand, and against scikit-learn's; what holds for all of them: tests/contracts/test_metrics.py."""

import math

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from probe.metrics import (
    MULTILABEL,
    PER_IMAGE,
    at_threshold,
    average_precision,
    n_without_positive,
    top_k_hits,
    weight_entropy,
)
from store import BeyondClsError

LOGITS = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.7], [0.2, 0.3, 0.1]])
LABELS = torch.tensor([1, 2, 2])


def test_top_k_by_hand():
    assert top_k_hits(LOGITS, LABELS, 1).sum() == 1
    assert top_k_hits(LOGITS, LABELS, 2).sum() == 2
    assert PER_IMAGE["top5"](LOGITS, LABELS).all()  # three classes only
    assert top_k_hits(LOGITS, LABELS, 2).tolist() == [True, True, False]


def test_nan_logits_are_wrong():
    assert not top_k_hits(torch.full((2, 3), math.nan), torch.tensor([0, 1])).any()
    one = torch.tensor([[5.0, math.nan, 0], [5, math.inf, 0], [5, -math.inf, 0]])
    assert top_k_hits(one, torch.tensor([0, 1, 0])).tolist() == [False, False, True]  # -inf: a class that is ruled out
    assert top_k_hits(one, torch.tensor([0, 1, 2]), 3).tolist() == [False, False, True]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_class_that_is_ruled_out_is_never_right(k):
    """Not even where there are fewer others than k, or fewer classes."""
    logits = torch.tensor([[-math.inf, 1.0, -math.inf, -math.inf]]).expand(4, -1)
    assert top_k_hits(logits, torch.arange(4), k).tolist() == [False, True, False, False]
    assert top_k_hits(logits[:, :2], torch.tensor([0, 1, 0, 1]), k).tolist() == [False, True] * 2
    assert not top_k_hits(torch.full((4, 4), -math.inf), torch.arange(4), k).any()


def test_a_head_that_says_the_same_of_every_class_knows_one():
    assert top_k_hits(torch.zeros(4, 4), torch.arange(4)).tolist() == [True, False, False, False]
    assert top_k_hits(torch.zeros(4, 4), torch.arange(4), 2).tolist() == [True, True, False, False]


def test_k_below_1():
    with pytest.raises(BeyondClsError, match="top-k accuracy has k = 0, expected 1 or more"):
        top_k_hits(LOGITS, LABELS, 0)


def test_entropy_bounds():
    uniform, single = torch.full((1, 64), 1 / 64), torch.eye(64)[:1]
    assert weight_entropy(torch.cat([uniform, single])).tolist() == pytest.approx([math.log(64), 0])


def drawn(levels: int, n: int = 60, k: int = 5, share: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores with about n / levels ties each, and labels of which every class has some."""
    generator = torch.Generator().manual_seed(levels)
    labels = torch.rand(n, k, generator=generator) < share
    return torch.randint(levels, (n, k), generator=generator) / 7 - levels / 14, labels.to(torch.uint8)


@pytest.mark.parametrize("levels", [1, 2, 5, 30, 100_000])
def test_average_precision_is_scikit_learns(levels):
    scores, labels = drawn(levels)
    expected = [average_precision_score(y, s) for y, s in zip(labels.T.numpy(), scores.T.numpy(), strict=True)]
    assert average_precision(scores, labels).tolist() == pytest.approx(expected, abs=1e-12)
    assert MULTILABEL["map"](scores, labels).item() == pytest.approx(100 * sum(expected) / 5)
    micro = average_precision_score(labels.numpy(), scores.numpy(), average="micro")
    assert MULTILABEL["map_overall"](scores, labels).item() == pytest.approx(100 * micro)


def test_average_precision_by_hand():
    scores = torch.tensor([[3.0], [2], [2], [1]])
    # Thresholds 3, 2, 1 reach 1, 2 and 2 of 2 positives among 1, 3 and 4 images.
    assert average_precision(scores, torch.tensor([[1], [0], [1], [0]])).item() == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert average_precision(torch.zeros(4, 1), torch.tensor([[1], [0], [0], [0]])).item() == pytest.approx(0.25)
    assert average_precision(-scores, torch.tensor([[0], [0], [0], [1]])).item() == 1


def test_a_class_without_a_positive_is_left_out():
    scores, labels = drawn(30)
    labels[:, 1] = 0
    values = average_precision(scores, labels)
    assert values.isnan().tolist() == [False, True, False, False, False]
    assert MULTILABEL["map"](scores, labels).item() == pytest.approx(100 * values[[0, 2, 3, 4]].mean().item())
    assert (n_without_positive(labels), n_without_positive(drawn(30)[1])) == (1, 0)


def test_nan_scores_rank_last():
    scores = torch.tensor([[math.nan], [2.0], [1.0]])
    assert average_precision(scores, torch.tensor([[1], [0], [0]])).item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("levels", [2, 9, 1000])
def test_precision_and_recall_are_scikit_learns(levels):
    scores, labels = drawn(levels)
    chosen = (scores >= 0).numpy()
    values = {name: MULTILABEL[name](scores, labels).item() / 100 for name in ("CP", "CR", "CF1", "OP", "OR", "OF1")}
    common = {"zero_division": 0}
    assert values["CP"] == pytest.approx(precision_score(labels, chosen, average="macro", **common))
    assert values["CR"] == pytest.approx(recall_score(labels, chosen, average="macro", **common))
    assert values["CF1"] == pytest.approx(2 / (1 / values["CP"] + 1 / values["CR"]))
    assert values["OP"] == pytest.approx(precision_score(labels, chosen, average="micro", **common))
    assert values["OR"] == pytest.approx(recall_score(labels, chosen, average="micro", **common))
    assert values["OF1"] == pytest.approx(f1_score(labels, chosen, average="micro", **common))


def test_precision_and_recall_by_hand():
    labels = torch.tensor([[1, 1, 0], [1, 0, 0]])
    scores = torch.tensor([[1.0, -1, 1], [1, -1, -1]])
    values = {name: value.item() for name, value in at_threshold(scores, labels).items()}
    # The third class has no positive: in neither mean, but its false positive counts overall.
    assert (values["CP"], values["CR"]) == (50, 50)
    assert (values["OP"], values["OR"]) == pytest.approx((200 / 3, 200 / 3))
    nothing = at_threshold(scores - 9, labels)
    assert [nothing[name].item() for name in ("CP", "CF1", "OP", "OR", "OF1")] == [0, 0, 0, 0, 0]
    assert at_threshold(torch.full((2, 3), math.nan), labels)["OR"].item() == 0
