"""Calibration: closed forms, scikit-learn's numbers, and the temperature that generated the labels."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from probe.calibration import bins_of_mass, bins_of_width, brier_scores, calibration_error, fit_temperature, reliability
from store import BeyondClsError


def drawn(n: int = 4000, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of five classes, times a scale, and labels that were drawn by their softmax."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    return scale * logits, labels


def test_brier_is_that_of_scikit_learn() -> None:
    logits, labels = drawn()
    p = logits.softmax(-1)
    ours = brier_scores(p, labels).mean().item()
    assert ours == pytest.approx(brier_score_loss(labels.numpy(), p.numpy(), labels=range(5), scale_by_half=False), rel=1e-12)


@pytest.mark.parametrize(
    ("bins_of", "strategy", "rel", "points"), [(bins_of_width, "uniform", 1e-12, 1e-9), (bins_of_mass, "quantile", 2e-2, 0.3)]
)
def test_bins_are_those_of_scikit_learn(bins_of, strategy: str, rel: float, points: float) -> None:
    """Its quantile bins hold as many images where 15 divides their number."""
    logits, labels = drawn(4500, scale=1.7)
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


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 50.0])
def test_the_temperature_is_what_logits_were_multiplied_by(scale: float) -> None:
    logits, labels = drawn(scale=scale)
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
