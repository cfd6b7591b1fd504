"""Measures by hand, and against scikit-learn's (what holds for all: tests/contracts/test_metrics.py); and calibration."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, brier_score_loss, f1_score, log_loss, precision_score, recall_score

from probe.calibration import bins_of_mass, bins_of_width, brier_scores, calibration_error, fit_temperature, reliability
from probe.metrics import MULTILABEL, at_threshold, average_precision, n_without_positive, top_k_hits
from store import BeyondClsError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("logits", "labels", "k", "hits"),
    [
        *(([[1, 9, 0], [8, 1, 7], [2, 3, 1]], [1, 2, 2], k, hits) for k, hits in ((1, "100"), (2, "110"), (5, "111"))),
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
    found = top_k_hits(torch.tensor(logits, dtype=torch.float32), torch.tensor(labels), k)
    assert found.tolist() == [hit == "1" for hit in hits]


def test_k_below_1():
    with pytest.raises(BeyondClsError, match="k = 0, expected 1"):
        top_k_hits(torch.zeros(2, 3), torch.tensor([0, 1]), 0)


def drawn(levels: int, n: int = 60, k: int = 5, share: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores with about n / levels ties each, and labels of which every class has some."""
    generator = torch.Generator().manual_seed(levels)
    labels = torch.rand(n, k, generator=generator) < share
    return torch.randint(levels, (n, k), generator=generator) / 7 - levels / 14, labels.to(torch.uint8)


@pytest.mark.parametrize("levels", [1, 5, 100_000])
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


def logits_and_labels(n: int = 4000, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of five classes, times a scale, and labels that were drawn by their softmax."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    return scale * logits, labels


def test_brier_is_that_of_scikit_learn() -> None:
    logits, labels = logits_and_labels()
    p = logits.softmax(-1)
    ours = brier_scores(p, labels).mean().item()
    assert ours == pytest.approx(brier_score_loss(labels.numpy(), p.numpy(), labels=range(5), scale_by_half=False), rel=1e-12)


@pytest.mark.parametrize(
    ("bins_of", "strategy", "rel", "points"), [(bins_of_width, "uniform", 1e-12, 1e-9), (bins_of_mass, "quantile", 2e-2, 0.3)]
)
def test_bins_are_those_of_scikit_learn(bins_of, strategy: str, rel: float, points: float) -> None:
    """Its quantile bins hold as many images where 15 divides their number."""
    logits, labels = logits_and_labels(4500, scale=1.7)
    stated, predicted = (values.numpy() for values in logits.softmax(-1).max(-1))
    correct = predicted == labels.numpy()
    bins = reliability(stated, correct, bins_of(stated))
    reached, mean = calibration_curve(correct, stated, n_bins=15, strategy=strategy)
    shown = [i for i, n in enumerate(bins["n"]) if n]
    assert sum(bins["n"]) == 4500
    np.testing.assert_allclose([bins["confidence"][i] for i in shown], mean, rtol=rel)
    expected = 100 * sum(bins["n"][i] * abs(a - b) for i, a, b in zip(shown, reached, mean, strict=True)) / 4500
    assert 1 < calibration_error(stated, correct, bins_of(stated)) == pytest.approx(expected, abs=points)


def test_calibration_error_in_closed_form() -> None:
    """Three of four images right where 90 % are stated, one of two where 50 % are: (4 · 15 + 2 · 0) / 6 points."""
    stated = np.array([0.9, 0.9, 0.9, 0.9, 0.5, 0.5])
    correct = np.array([True, True, True, False, True, False])
    assert calibration_error(stated, correct, bins_of_width(stated)) == pytest.approx(10)
    assert calibration_error(stated, correct, bins_of_mass(stated, 3), 3) == pytest.approx(10)


def test_edges_belong_to_the_bin_below_and_masses_differ_by_one() -> None:
    assert bins_of_width(np.array([0.0, 1 / 15, 0.0667, 1.0])).tolist() == [0, 0, 1, 14]
    assert sorted(np.bincount(bins_of_mass(np.random.default_rng(0).random(100)))) == [6] * 5 + [7] * 10


def test_equal_confidences_are_split_whatever_their_order() -> None:
    stated, correct = np.full(30, 0.7), np.arange(30) < 12
    for c in (correct, correct[::-1], np.roll(correct, 7)):
        assert calibration_error(stated, c, bins_of_mass(stated)) == pytest.approx(30, rel=1e-11)


@pytest.mark.parametrize("scale", [0.1, 3.0, 50.0])
def test_the_temperature_is_what_logits_were_multiplied_by(scale: float) -> None:
    logits, labels = logits_and_labels(scale=scale)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(scale, rel=0.05)
    least = minimize_scalar(
        lambda t: log_loss(labels.numpy(), (logits / math.exp(t)).softmax(-1).numpy(), labels=range(5)),
        bracket=(math.log(scale) - 0.5, math.log(scale) + 0.5),
        tol=1e-9,
    )
    assert found == pytest.approx(math.exp(least.x), rel=1e-5)
    assert fit_temperature(logits + 100, labels) == pytest.approx(found, rel=1e-6), "a constant is no evidence"


@pytest.mark.parametrize("shift", [0, 1])
def test_no_temperature_where_all_or_nothing_is_right(shift: int) -> None:
    labels = torch.arange(6) % 3
    logits = 5 * torch.nn.functional.one_hot((labels + shift) % 3, 3).double()
    with pytest.raises(BeyondClsError, match=rf"6 held-out images, .* {100 - 100 * shift}.0 % are right"):
        fit_temperature(logits, labels)
