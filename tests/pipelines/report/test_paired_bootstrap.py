"""The bootstrap against closed forms on synthetic images."""

import numpy as np
import pytest

from pipelines.report.paired_bootstrap import interval, resampled_means


def heads(n: int, generator: np.random.Generator) -> np.ndarray:
    """[2, n] of 0 and 1: two heads that are both right on half of the images, and one of them alone on a tenth or a fifth."""
    drawn = generator.random(n)
    return np.stack([drawn < 0.6, (drawn < 0.5) | ((drawn > 0.6) & (drawn < 0.8))]).astype(float)


def test_spread_is_the_standard_error() -> None:
    values = heads(400, np.random.default_rng(1))
    means = resampled_means(values, 4000)
    assert means.shape == (4000, 2)
    assert means.mean(0) == pytest.approx(values.mean(1), abs=2e-3)
    for samples, of_images in ((means[:, 0], values[0]), (means[:, 1] - means[:, 0], values[1] - values[0])):
        error = of_images.std() / 20
        assert samples.std() == pytest.approx(error, rel=0.05)
        low, high = interval(samples)
        assert (low, high) == pytest.approx(
            (of_images.mean() - 1.96 * error, of_images.mean() + 1.96 * error), abs=0.15 * error
        )


def test_pairing_narrows_the_difference() -> None:
    values = heads(400, np.random.default_rng(1))
    paired, apart = resampled_means(values, 2000), resampled_means(values[1:], 2000, seed=1)[:, 0]
    low, high = interval(paired[:, 1] - paired[:, 0])
    wide = interval(apart - paired[:, 0])
    assert high - low < 0.85 * (wide[1] - wide[0])


def test_95_of_100_intervals_hold_the_truth() -> None:
    generator, n_sets = np.random.default_rng(2), 400
    values = np.stack([heads(200, generator) for _ in range(n_sets)])  # [S, 2, N]
    means = resampled_means(values[:, 1] - values[:, 0], 1000)
    inside = [low <= 0.1 <= high for low, high in map(interval, means.T)]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.035)  # three standard errors


def test_resamples_are_the_same_in_every_call_for_any_other_quantities(monkeypatch: pytest.MonkeyPatch) -> None:
    values = heads(50, np.random.default_rng(3))
    both = resampled_means(values, 100)
    assert np.array_equal(both, resampled_means(values, 100))
    assert both[:, 1] == pytest.approx(resampled_means(values[1:], 100)[:, 0])
    assert not np.array_equal(both, resampled_means(values, 100, seed=1))
    monkeypatch.setattr("pipelines.report.paired_bootstrap.CHUNK", 7 * 50)
    assert np.array_equal(both, resampled_means(values, 100))
