"""Numbers with their spread over seeds and their interval over test images and seeds."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from pipelines.report.collect import Folders, collect
from pipelines.report.estimate import Estimate, Variation, estimate_of, mean_over_encoders
from store import BeyondClsError
from tests.pipelines.report.written import write_correct, write_probe

N = 500


def hits(rate: float, seed: int = 0, n: int = N) -> np.ndarray:
    """[3, n]: seeds that agree on most images; image i is right where it is below the rate."""
    seeds = np.random.default_rng(seed).normal(0, 0.01, (3, 1))
    return np.linspace(0, 1, n)[None] < rate + seeds


def head(root: Path, encoder: str, name: str, correct: np.ndarray, images: str | None = "images") -> Path:
    return write_correct(write_probe(root, encoder, name, 50.0), correct, images)


def estimated(root: Path) -> dict[tuple[str, str], Estimate]:
    return {key: estimate_of(probe) for key, probe in collect(Folders(root)).probes.items()}


def test_an_interval_is_over_paired_images_and_seeds(tmp_path: Path) -> None:
    """By hand: variances of both means over seeds and that over images add up, less what seeds disagree about on images."""
    one, other = hits(0.7), hits(0.6, 1)
    head(tmp_path, "mae", "abmilp", one)
    head(tmp_path, "mae", "cls", other)
    accuracy = estimated(tmp_path)
    difference = accuracy["mae", "abmilp"].minus(accuracy["mae", "cls"])
    of_images = (100 * (one.mean(0) - other.mean(0))).var(ddof=1) / N
    of_seeds = [(100 * hits_of_head.mean(1)).var(ddof=1) / 3 for hits_of_head in (one, other)]
    in_both = 0.0
    for hits_of_head in (one, other):
        rest = 100 * (hits_of_head - hits_of_head.mean(0) - hits_of_head.mean(1, keepdims=True) + hits_of_head.mean())
        in_both += (rest**2).sum() / (2 * (N - 1)) / (3 * N)
    variance = of_images + sum(of_seeds) - in_both
    degrees = variance**2 / (of_images**2 / (N - 1) + sum(v**2 / 2 for v in of_seeds))
    assert difference.error == pytest.approx((math.sqrt(variance), degrees))
    reach = t.ppf(0.975, degrees) * math.sqrt(variance)
    assert difference.mean == pytest.approx(100 * (one.mean() - other.mean()))
    assert difference.interval == pytest.approx((difference.mean - reach, difference.mean + reach))
    assert difference.std == pytest.approx(math.hypot(100 * one.mean(1).std(ddof=1), 100 * other.mean(1).std(ddof=1)))
    assert accuracy["mae", "cls"].minus(accuracy["mae", "cls"]).interval == (0, 0)  # what is subtracted varies with itself


def test_log_odds_are_those_of_accuracies_and_vary_as_their_slopes_say() -> None:
    one, other = of_correct("a", hits(0.7)), of_correct("b", hits(0.6, 1))
    above = one.log_odds_above(other)
    assert above is not None
    odds = [math.log(a.mean / (100 - a.mean)) for a in (one, other)]
    assert above.mean == pytest.approx(odds[0] - odds[1])
    slopes = [100 / (a.mean * (100 - a.mean)) for a in (one, other)]
    assert above.std == pytest.approx(math.hypot(slopes[0] * one.std, slopes[1] * other.std))
    assert one.log_odds_above(Estimate(100.0, 0.0, 3)) is None
    assert Estimate(0.0, 0.0, 3).log_odds_above(one) is None


def trial(generator: np.random.Generator, n_seeds: int, between_seeds: float) -> list[np.ndarray]:
    """Two heads on 300 images: some images are hard for both, some for one of them, and each seed is a bit better or worse."""
    images = generator.normal(0, 2, 300)
    heads = []
    for level in (1.0, 0.7):
        logits = level + images + generator.normal(0, 1, 300) + generator.normal(0, between_seeds, (n_seeds, 1))
        heads.append(generator.random((n_seeds, 300)) < 1 / (1 + np.exp(-logits)))
    return heads


@pytest.mark.parametrize(("n_seeds", "between_seeds"), [(2, 0.5), (12, 0.2)])
def test_intervals_cover_what_other_images_and_seeds_have_on_average(n_seeds: int, between_seeds: float) -> None:
    """95 % of intervals have the truth in them, that of points, of shares and of log-odds, in 1,000 trials."""
    generator, many = np.random.default_rng(0), np.random.default_rng(1)
    spread = np.sqrt(2**2 + 1 + between_seeds**2) * many.normal(0, 1, 400_000)
    a, b = (100 * (1 / (1 + np.exp(-(level + spread)))).mean() for level in (1.0, 0.7))
    truths = (a - b, 100 * (a - b) / (100 - b), math.log(a / (100 - a)) - math.log(b / (100 - b)))
    covered = np.zeros(3)
    for _ in range(1000):
        one, other = (of_correct(f"{i}", correct) for i, correct in enumerate(trial(generator, n_seeds, between_seeds)))
        for i, estimate in enumerate((one.minus(other), one.share_of(other), one.log_odds_above(other))):
            assert estimate is not None
            assert estimate.interval is not None
            covered[i] += estimate.interval[0] <= truths[i] <= estimate.interval[1]
    assert covered / 1000 == pytest.approx(0.95, abs=0.02)  # by chance 0.95 ± 0.014


def test_a_share_is_of_the_errors_of_the_other() -> None:
    one, other = Estimate(70.0, 0.3, 3), Estimate(60.0, 0.4, 3)
    share = one.share_of(other)
    assert share is not None
    assert share.mean == pytest.approx(25)
    assert share.std == pytest.approx(math.hypot(0.3 * 100 / 40, 0.4 * 100 * 30 / 40**2))  # slopes of 100 (a - b) / (100 - b)
    assert Estimate(100.0, 0.0, 3).share_of(Estimate(100.0, 0.0, 3)) is None
    share = of_correct("a", hits(0.7)).share_of(of_correct("b", hits(0.6, 1)))
    assert share is not None
    assert share.interval is not None
    low, high = share.interval
    assert low < share.mean < high
    assert high - low == pytest.approx(2 * 1.96 * 100 * math.sqrt(0.25 * 0.75 / (0.4 * N)), rel=0.15)  # of 0.4 N errors


def test_other_images_vary_independently(tmp_path: Path) -> None:
    head(tmp_path, "mae", "abmilp", hits(0.7))
    for encoder, images, n in (("a", "others", N), ("b", "images", N - 1), ("c", None, N)):
        head(tmp_path, encoder, "cls", hits(0.6, n=n), images)
    accuracy = estimated(tmp_path)
    one = accuracy["mae", "abmilp"]
    for encoder in "ab":
        other = accuracy[encoder, "cls"]
        difference = one.minus(other)
        assert None not in (difference.error, one.error, other.error)
        assert difference.error[0] == pytest.approx(math.hypot(one.error[0], other.error[0]))  # type: ignore[index]
    unknown = one.minus(accuracy["c", "cls"])
    assert (unknown.interval, unknown.bounds(), unknown.sign) == (None, "–", None)
    assert accuracy["c", "cls"].interval is None


def test_draws_of_weights_are_the_units_and_are_paired(tmp_path: Path) -> None:
    """Two draws with three seeds each: two units, that both heads have in common, and not six."""
    draws = [np.concatenate([hits(rate, i), hits(rate + 0.1, i + 10)]) for i, rate in enumerate((0.6, 0.5))]
    for name, correct in zip(("abmilp", "cls"), draws, strict=True):
        file = head(tmp_path, "random", name, correct) / "description.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"draws": 2}))
    accuracy = estimated(tmp_path)
    one, other = accuracy["random", "abmilp"], accuracy["random", "cls"]
    units = {source.kind: effects for source, effects in one.minus(other).effects.items()}
    assert {kind: len(effects) for kind, effects in units.items()} == {"draws": 2, "images": N}
    by_draw = [100 * correct.reshape(2, 3, N).mean((1, 2)) for correct in draws]
    assert units["draws"] == pytest.approx(by_draw[0] - by_draw[1])


def test_the_mean_over_encoders_varies_with_them() -> None:
    encoders = {name: of_correct(name, hits(rate)) for name, rate in (("a", 0.6), ("b", 0.7), ("c", 0.5))}
    mean = mean_over_encoders("all", encoders.values())
    means = [one.mean for one in encoders.values()]
    assert (mean.mean, mean.std) == (pytest.approx(np.mean(means)), pytest.approx(np.std(means, ddof=1)))
    assert {source.kind: len(units) for source, units in mean.effects.items()} == {"encoders": 3, "images": N}
    assert mean_over_encoders("one", [encoders["a"]]) is encoders["a"]


def of_correct(name: str, correct: np.ndarray) -> Estimate:
    """The estimate of a head, from which images which of its seeds are right about."""
    units = 100 * correct
    rest = units - units.mean(0) - units.mean(1, keepdims=True) + units.mean()
    in_both = (rest**2).sum() / ((len(units) - 1) * (units.shape[1] - 1)) / units.size
    effects = {Variation("seeds", name): units.mean(1), Variation("images", "i"): units.mean(0)}
    return Estimate(float(units.mean()), float(units.mean(1).std(ddof=1)), len(units), effects, float(in_both))


def estimate_with(mean: float, error: float, n_seeds: int = 3) -> Estimate:
    """With a standard error over 10,000 images."""
    units = mean + 100 * error * np.resize([1.0, -1.0], 10_000)
    return Estimate(mean, 0.12, n_seeds, {Variation("images", "i"): units})


def test_a_sign_is_beyond_the_interval() -> None:
    assert [estimate_with(mean, 1).sign for mean in (2.0, 1.9, -1.9, -2.0)] == [1, 0, 0, -1]
    assert [estimate_with(*given).bounds() for given in ((4.37, 1.32), (-4.37, 2.2))] == ["1.8 to 7.0", "−8.7 to −0.1"]


def test_one_seed_or_no_images_say_nothing() -> None:
    assert estimate_with(5, 1, n_seeds=1).sign is None
    assert estimate_with(5, 1, n_seeds=1).interval == pytest.approx((5 - 1.96, 5 + 1.96), abs=1e-3)
    assert Estimate(5.0, 0.1, 12, {Variation("seeds", "s"): np.linspace(4.9, 5.1, 12)}).sign is None


def test_what_does_not_fit_its_metrics_is_refused(tmp_path: Path) -> None:
    folder = head(tmp_path, "mae", "cls", hits(0.6))
    file, metrics = folder / "trained/correct.npz", json.loads((folder / "description.json").read_text())
    for changed, message in (
        ({"top1": metrics["top1"] | {"mean": 61.0}}, r"cls/trained/correct\.npz gives 6\d\.\d+ % correct, expected 61\.000 %"),
        ({"n_test": 7}, r"is \(3, 500\) \(seeds, images\), its metrics\.json says \(3, 7\)"),
    ):
        (folder / "description.json").write_text(json.dumps(metrics | changed))
        with pytest.raises(BeyondClsError, match=message):
            estimated(tmp_path)
    whole = file.read_bytes()
    for damaged in (b"no archive", whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(BeyondClsError, match=r"correct\.npz is damaged .*probe it again"):
            estimated(tmp_path)
