"""Measures by hand, and against scikit-learn's; what holds for all of them: tests/contracts/test_metrics.py."""

import math

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from probe.metrics import MULTILABEL, at_threshold, average_precision, n_without_positive, top_k_hits, weight_entropy
from store import BeyondClsError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("logits", "labels", "k", "hits"),
    [
        *(
            ([[0.1, 0.9, 0], [0.8, 0.1, 0.7], [0.2, 0.3, 0.1]], [1, 2, 2], k, hits)
            for k, hits in ((1, "100"), (2, "110"), (5, "111"))
        ),
        # An image with a NaN or +inf counts as wrong; -inf rules a class out, even where there are fewer others than k.
        ([[NAN] * 3] * 2, [0, 1], 1, "00"),
        ([[5, NAN, 0], [5, INF, 0], [5, -INF, 0]], [0, 1, 0], 1, "001"),
        ([[5, NAN, 0], [5, INF, 0], [5, -INF, 0]], [0, 1, 2], 3, "001"),
        *(([[-INF, 1, -INF, -INF]] * 4, [0, 1, 2, 3], k, "0100") for k in (1, 2, 5)),
        *(([[-INF, 1]] * 4, [0, 1, 0, 1], k, "0101") for k in (1, 2, 5)),
        *(([[-INF] * 4] * 4, [0, 1, 2, 3], k, "0000") for k in (1, 2, 5)),
        # A head that says the same of every class knows one.
        ([[0] * 4] * 4, [0, 1, 2, 3], 1, "1000"),
        ([[0] * 4] * 4, [0, 1, 2, 3], 2, "1100"),
    ],
    ids=str,
)
def test_top_k_by_hand(logits, labels, k, hits):
    assert top_k_hits(torch.tensor(logits, dtype=torch.float32), torch.tensor(labels), k).tolist() == [
        hit == "1" for hit in hits
    ]


def test_k_below_1():
    with pytest.raises(BeyondClsError, match="k = 0, expected 1"):
        top_k_hits(torch.zeros(2, 3), torch.tensor([0, 1]), 0)


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


def test_a_class_without_a_positive_is_left_out():
    scores, labels = drawn(30)
    assert n_without_positive(labels) == 0
    labels[:, 1] = 0
    values = average_precision(scores, labels)
    assert values.isnan().tolist() == [False, True, False, False, False]
    assert MULTILABEL["map"](scores, labels).item() == pytest.approx(100 * values[[0, 2, 3, 4]].mean().item())
    assert n_without_positive(labels) == 1


def test_nan_scores_rank_last():
    scores = torch.tensor([[NAN], [2.0], [1.0]])
    assert average_precision(scores, torch.tensor([[1], [0], [0]])).item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("levels", [2, 9, 1000])
def test_precision_and_recall_are_scikit_learns(levels):
    scores, labels = drawn(levels)
    chosen, measures = (scores >= 0).numpy(), {"P": precision_score, "R": recall_score, "F1": f1_score}
    values = {name: MULTILABEL[name](scores, labels).item() / 100 for name in ("CP", "CR", "CF1", "OP", "OR", "OF1")}
    for group, average in (("C", "macro"), ("O", "micro")):
        for name, measure in measures.items():
            expected = measure(labels, chosen, average=average, zero_division=0)
            if group + name == "CF1":  # of the two means
                expected = 2 / (1 / values["CP"] + 1 / values["CR"])
            assert values[group + name] == pytest.approx(expected)


def test_precision_and_recall_by_hand():
    labels = torch.tensor([[1, 1, 0], [1, 0, 0]])
    scores = torch.tensor([[1.0, -1, 1], [1, -1, -1]])
    values = {name: value.item() for name, value in at_threshold(scores, labels).items()}
    # The third class has no positive: in neither mean, but its false positive counts overall.
    assert (values["CP"], values["CR"]) == (50, 50)
    assert (values["OP"], values["OR"]) == pytest.approx((200 / 3, 200 / 3))
    nothing = at_threshold(scores - 9, labels)
    assert [nothing[name].item() for name in ("CP", "CF1", "OP", "OR", "OF1")] == [0, 0, 0, 0, 0]
    assert at_threshold(torch.full((2, 3), NAN), labels)["OR"].item() == 0
