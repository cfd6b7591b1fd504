"""The section about other test sets: accuracies, gaps with their intervals, means over corruptions, calibration."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from pipelines.report.collect import Folders, Inputs
from pipelines.report.content import Section
from pipelines.report.sections.scores import section
from store import BeyondClsError
from tests.pipelines.report.everything import write_score
from tests.pipelines.report.written import figures, shown, studied, tables

N = 400
RATES = {"first": (0.8, 0.82), "sketch": (0.5, 0.55), "fog-1": (0.7, 0.74), "fog-3": (0.4, 0.42), "snow-2": (0.3, 0.36)}


def right(name: str) -> np.ndarray:
    """[2, N] which images each seed is right about."""
    order = np.random.default_rng(len(name)).permutation(N)
    return (order + 0.5) / N < np.array(RATES[name])[:, None]


def write(root: Path) -> Inputs:
    for name in RATES:
        write_score(root, name, "mae", "cls", right(name), images="others" if name == "sketch" else "images")
    write_score(root, "first", "not shown", "cls", right("first"))
    return Inputs({("mae", "cls"): studied("mae", "cls", 80.0, "cls")}, folders=Folders(scores=root))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Section:
    result = section(write(tmp_path_factory.mktemp("scores")))
    assert result is not None
    return result


def test_accuracies_gaps_and_the_mean_over_corruptions(built: Section) -> None:
    by_name = tables(built)
    rows, each = shown(by_name["scores"]), shown(by_name["scores-corrupted"])
    assert [row[2] for row in rows] == ["first", "sketch", "mean of 3: 2 corruptions, severities 1, 2, 3"]
    assert [row[2] for row in each] == ["fog-1", "fog-3", "snow-2"]
    assert [row[3] for row in rows] == ["81.0 ± 1.4", "52.5 ± 3.5", "48.7 ± 2.8"]
    assert [row[5] for row in rows] == ["–", "−28.5 ± 2.1", "−32.3 ± 1.4"]
    assert rows[2][7:] == ["1,200", "3"]


def interval(units: list[np.ndarray], by_seed: np.ndarray, in_both: float) -> list[float]:
    """95 % of sums over independent images and over paired seeds, by the formulas."""
    parts = [(u.var(ddof=1) / len(u), len(u) - 1) for u in units] + [(by_seed.var(ddof=1) / 2, 1)]
    variance = sum(v for v, _ in parts) - in_both
    degrees = max(variance**2 / sum(v**2 / d for v, d in parts), 1)
    reach = variance**0.5 * t.ppf(0.975, degrees)
    return [by_seed.mean() + side * reach for side in (-1, 1)]


def in_both(correct: np.ndarray) -> float:
    units = 100 * correct.astype(float)
    residual = units - units.mean(0) - units.mean(1, keepdims=True) + units.mean()
    return (residual**2).sum() / (N - 1) / units.size


@pytest.mark.parametrize("place", [1, 2])
def test_gaps_pair_seeds_and_the_same_images(built: Section, place: int) -> None:
    """Those of `sketch` are other images; corrupted ones are those of the first set."""
    row = tables(built)["scores"].rows[place]
    names = ["sketch"] if place == 1 else ["fog-1", "fog-3", "snow-2"]
    ours, first = [100 * right(name).astype(float) for name in names], 100 * right("first").astype(float)
    by_seed = np.mean([own.mean(1) for own in ours], 0) - first.mean(1)
    units = [ours[0].mean(0), first.mean(0)] if place == 1 else [np.mean([own.mean(0) for own in ours], 0) - first.mean(0)]
    both = in_both(right("sketch")) + in_both(right("first")) if place == 1 else 0.0
    expected = interval(units, by_seed, both)
    assert str(row.cells[6].value).replace("−", "-") == f"{expected[0]:.3f} to {expected[1]:.3f}"


def test_one_corruption_is_a_test_set_as_others(tmp_path: Path) -> None:
    inputs = write(tmp_path)
    for name in ("fog-3", "snow-2"):
        (tmp_path / name / "mae/cls/metrics.json").unlink()
    by_name = tables(section(inputs))
    assert [row[2] for row in shown(by_name["scores"])] == ["first", "fog-1", "sketch"]
    assert "scores-corrupted" not in by_name


def test_calibration_and_its_picture(built: Section) -> None:
    rows = shown(tables(built)["calibration"])
    assert len(rows) == 3
    assert rows[0][3:8] == ["0.600 ± 0.141", "0.600 ± 0.141", "0.6 ± 0.1", "0.6 ± 0.1", "1.30 ± 0.14"]
    drawn = figures(built)
    assert [figure.title for figure in drawn] == ["mae, first", "mae, sketch"]
    assert drawn[0].name == "reliability-mae-first"
    assert "[cls]: ECE 0.6 %" in drawn[0].alt


def test_a_record_of_other_images_is_refused(tmp_path: Path) -> None:
    inputs = write(tmp_path)
    file = tmp_path / "sketch/mae/cls/trained/correct.npz"
    with np.load(file) as arrays:
        np.savez(file, correct=arrays["correct"], reference=~arrays["reference"])
    with pytest.raises(BeyondClsError, match=r"19.000 % correct, expected 81.000 %"):
        section(inputs)
