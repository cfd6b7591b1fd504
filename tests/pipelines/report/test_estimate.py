"""Numbers with their spread over seeds and their interval over test images."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from pipelines.report.collect import Folders, collect
from pipelines.report.estimate import Estimate, estimates
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
    return estimates(collect(Folders(root, root / "none")).probes, ("cls", "abmilp"))


def test_an_interval_is_that_of_paired_images(tmp_path: Path) -> None:
    one, other = hits(0.7), hits(0.6, 1)
    head(tmp_path, "mae", "abmilp", one)
    head(tmp_path, "mae", "cls", other)
    accuracy = estimated(tmp_path)
    difference = accuracy["mae", "abmilp"].minus(accuracy["mae", "cls"])
    of_images = one.mean(0) - other.mean(0)
    error = 100 * of_images.std() / math.sqrt(N)
    assert difference.mean == pytest.approx(100 * of_images.mean())
    assert difference.interval == pytest.approx(
        (difference.mean - 1.96 * error, difference.mean + 1.96 * error), abs=0.2 * error
    )
    assert difference.std == pytest.approx(math.hypot(100 * one.mean(1).std(ddof=1), 100 * other.mean(1).std(ddof=1)))


def test_a_share_is_of_the_errors_of_the_other(tmp_path: Path) -> None:
    one, other = Estimate(70.0, 0.3, 3), Estimate(60.0, 0.4, 3)
    share = one.share_of(other)
    assert share is not None
    assert share.mean == pytest.approx(25)
    slopes = [(share_at(70 + h, 60) - share_at(70 - h, 60), share_at(70, 60 + h) - share_at(70, 60 - h)) for h in (1e-4,)]
    assert share.std == pytest.approx(math.hypot(*(s * d / 2e-4 for s, d in zip((0.3, 0.4), slopes[0], strict=True))), rel=1e-6)
    assert Estimate(100.0, 0.0, 3).share_of(Estimate(100.0, 0.0, 3)) is None
    head(tmp_path, "mae", "abmilp", hits(0.7))
    head(tmp_path, "mae", "cls", hits(0.6, 1))
    accuracy = estimated(tmp_path)
    share = accuracy["mae", "abmilp"].share_of(accuracy["mae", "cls"])
    assert share is not None
    assert share.interval is not None
    low, high = share.interval
    assert low < share.mean < high
    assert high - low == pytest.approx(2 * 1.96 * 100 * math.sqrt(0.25 * 0.75 / (0.4 * N)), rel=0.15)  # of 0.4 N errors


def share_at(one: float, other: float) -> float:
    return 100 * (one - other) / (100 - other)


def test_other_images_are_not_paired(tmp_path: Path) -> None:
    head(tmp_path, "mae", "abmilp", hits(0.7))
    for encoder, images, n in (("a", "others", N), ("b", "images", N - 1), ("c", None, N)):
        head(tmp_path, encoder, "cls", hits(0.6, n=n), images)
    accuracy = estimated(tmp_path)
    for encoder in "abc":
        difference = accuracy["mae", "abmilp"].minus(accuracy[encoder, "cls"])
        assert (difference.interval, difference.bounds()) == (None, "–")
        share = accuracy["mae", "abmilp"].share_of(accuracy[encoder, "cls"])
        assert share is not None
        assert share.interval is None
    assert accuracy["a", "cls"].interval is not None
    assert accuracy["c", "cls"].interval is None


@pytest.mark.parametrize(
    ("std", "n_seeds", "images", "sign"),
    [(0.4, 3, (0.5, 1.5), 1), (0.4, 3, None, 1), (0.6, 3, (0.5, 1.5), 0), (0.4, 3, (-0.1, 2.1), 0), (0.0, 1, (0.5, 1.5), 1)],
)
def test_a_sign_is_beyond_seeds_and_images(std: float, n_seeds: int, images: tuple[float, float] | None, sign: int) -> None:
    samples = None if images is None else np.linspace(*images, 1000)
    assert Estimate(1.0, std, n_seeds, samples, "i").sign == sign
    assert Estimate(-1.0, std, n_seeds, None if samples is None else -samples, "i").sign == -sign


def test_one_seed_without_images_says_nothing() -> None:
    assert Estimate(1.0, 0.0, 1).sign is None


def test_in_words() -> None:
    known = Estimate(4.37, 0.12, 3, np.linspace(-0.04, 5, 1000), "i")
    assert known.in_words("points").replace("\xa0", " ") == "+4.4 ± 0.1 points [0.1 to 4.9]"
    assert Estimate(4.37, 0.12, 3).in_words("%", sign=False).replace("\xa0", " ") == "4.4 ± 0.1 %"
    assert Estimate(-4.37, 0.0, 1, np.linspace(-5, -0.01, 1000), "i").bounds() == "−4.9 to −0.1"


def test_what_does_not_fit_its_metrics_is_refused(tmp_path: Path) -> None:
    folder = head(tmp_path, "mae", "cls", hits(0.6))
    file, metrics = folder / "trained/correct.npz", json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(json.dumps(metrics | {"top1": metrics["top1"] | {"mean": 61.0}}))
    with pytest.raises(
        BeyondClsError, match=r"cls/trained/correct\.npz gives 6\d\.\d+ % correct, expected 61\.000 %.*probe it"
    ):
        estimated(tmp_path)
    (folder / "metrics.json").write_text(json.dumps(metrics | {"n_test": 7}))
    with pytest.raises(
        BeyondClsError, match=r"is \(3, 500\) \(seeds, images\), its metrics\.json says \(3, 7\); probe it again"
    ):
        estimated(tmp_path)
    whole = file.read_bytes()
    for damaged in (b"no archive", whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(
            BeyondClsError, match=r"correct\.npz is damaged .*expected `correct`, \[seeds, images\]; probe it again"
        ):
            estimated(tmp_path)
