"""A number with its uncertainty: the spread over seeds, and an interval over test images."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from pipelines.report.measured import Measure, Probe
from pipelines.report.paired_bootstrap import interval, resampled_means
from pipelines.report.tables import unbroken
from probe.result_arrays import array_of
from store import BeyondClsError

Probes = Mapping[tuple[str, str], Probe]  # by encoder and head


@dataclass(frozen=True, eq=False)
class Estimate:
    """A mean over seeds, percent or points.

    Attributes:
        std: over seeds (n - 1 in the denominator); 0 for one.
        samples: the mean on resampled test images; None if it is unknown which images were classified correctly.
        images: the test images. Estimates of the same images are resampled together, others are not.
    """

    mean: float
    std: float
    n_seeds: int
    samples: Float[np.ndarray, "R"] | None = None
    images: str | None = None

    def minus(self, other: "Estimate") -> "Estimate":
        """The difference: of each resample, if both are of the same images; the root of the summed variances over seeds."""
        n = min(self.n_seeds, other.n_seeds)
        std = math.hypot(self.std, other.std) if n > 1 else 0.0
        if self.samples is None or other.samples is None or self.images != other.images:
            return Estimate(self.mean - other.mean, std, n)
        return Estimate(self.mean - other.mean, std, n, self.samples - other.samples, self.images)

    def share_of(self, other: "Estimate") -> "Estimate | None":
        """Of two accuracies: the share of the errors of `other` that this one avoids, percent; None if `other` makes none.

        (a - b) / (100 - b); its spread over seeds is that of its linear expansion. Where a resample has no errors it is 0.
        """
        if other.mean >= 100:
            return None
        difference, left = self.minus(other), 100 - other.mean
        mean = 100 * difference.mean / left
        std = (
            math.hypot(100 * self.std / left, 100 * other.std * (100 - self.mean) / left**2) if difference.n_seeds > 1 else 0.0
        )
        if difference.samples is None or other.samples is None:
            return Estimate(mean, std, difference.n_seeds)
        errors = 100 - other.samples
        samples = 100 * np.divide(difference.samples, errors, out=np.zeros_like(errors), where=errors > 1e-9)
        return Estimate(mean, std, difference.n_seeds, samples, difference.images)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % over test images; None if it is unknown which of them were classified correctly."""
        return None if self.samples is None else interval(self.samples)

    @property
    def sign(self) -> int | None:
        """1 or -1 where zero is outside of the interval over images and of twice the spread over seeds, else 0.

        Uses those of the two that are known; None if neither is.
        """
        if self.n_seeds < 2 and self.samples is None:
            return None
        beyond = [] if self.n_seeds < 2 else [abs(self.mean) > 2 * self.std]
        if (bounds := self.interval) is not None:
            beyond.append(bounds[0] > 0 or bounds[1] < 0)
        return int(math.copysign(1, self.mean)) if all(beyond) else 0

    @property
    def measure(self) -> Measure:
        """The estimate without its interval; the single values of a difference are unknown (NaN)."""
        return Measure(self.mean, self.std, (math.nan,) * self.n_seeds)

    def bounds(self, digits: int = 1) -> str:
        """`3.8 to 5.0`; a dash if the interval is unknown."""
        if self.interval is None:
            return "–"
        return " to ".join(f"{value + 0.0:.{digits}f}".replace("-", "−") for value in (round(v, digits) for v in self.interval))

    def in_words(self, unit: str, sign: bool = True) -> str:
        """`+4.4 ± 0.1 points [3.8 to 5.0]`, as far as known, with no-break spaces."""
        text = unbroken(self.measure)
        return f"{text if sign else text.removeprefix('+')}\N{NO-BREAK SPACE}{unit}{self._bracket()}"

    def _bracket(self) -> str:
        return "" if self.interval is None else f" [{self.bounds()}]".replace(" to ", "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}")


def estimates(probes: Probes, heads: Iterable[str]) -> dict[tuple[str, str], Estimate]:
    """Accuracy of each encoder with these heads, percent; resampled where probes record which images they classify correctly.

    Raises:
        BeyondClsError: that record does not fit their metrics.
    """
    wanted = {key: probe for key, probe in probes.items() if key[1] in set(heads)}
    by_images: dict[str, list[tuple[str, str]]] = {}
    for key, probe in wanted.items():
        if probe.correct is not None and probe.test_images is not None and probe.measure == "top1":
            by_images.setdefault(f"{probe.test_images} ({probe.n_test})", []).append(key)
    samples: dict[tuple[str, str], tuple[np.ndarray, str]] = {}
    for images, keys in by_images.items():
        for key in keys:
            _check(wanted[key])
        of_keys = ((wanted[key].correct, wanted[key].member) for key in keys)
        files = tuple((file, member, file.stat().st_mtime_ns) for file, member in of_keys if file is not None)
        means = _resampled(files)
        samples |= {key: (means[:, i], images) for i, key in enumerate(keys)}
    return {key: _estimate(probe, *samples.get(key, (None, None))) for key, probe in wanted.items()}


def _estimate(probe: Probe, samples: np.ndarray | None, images: str | None) -> Estimate:
    measure = probe.measures[probe.measure]
    return Estimate(measure.mean, measure.std, len(measure.values), samples, images)


@lru_cache(maxsize=8)  # several sections ask for the same
def _resampled(files: tuple[tuple[Path, str, int], ...]) -> Float[np.ndarray, "R Q"]:
    """Accuracies in percent, averaged over seeds, on resampled images; by file, array in it, and modification time."""
    return 100 * resampled_means(np.stack([_correct(file, member).mean(0) for file, member, _ in files]))


def _correct(file: Path, member: str) -> Bool[np.ndarray, "S N"]:
    return array_of(file, f"`{member}`, [seeds, images]; probe it again", member)


def _check(probe: Probe) -> None:
    """Refuse a file that does not belong to the metrics.

    Raises:
        BeyondClsError: the file is of other seeds or images than the metrics, or gives another accuracy.
    """
    assert probe.correct is not None
    correct, measure = _correct(probe.correct, probe.member), probe.measures["top1"]
    if correct.dtype != bool:
        raise BeyondClsError(f"{probe.correct} has {correct.dtype}, expected bool [seeds, images]; probe it again")
    shape = (len(measure.values), probe.n_test)
    if correct.shape != shape:
        raise BeyondClsError(
            f"{probe.correct} is {correct.shape} (seeds, images), its metrics.json says {shape}; probe it again"
        )
    if abs(100 * correct.mean() - measure.mean) > 1e-3:
        raise BeyondClsError(
            f"{probe.correct} gives {100 * correct.mean():.3f} % correct, expected {measure.mean:.3f} % as its metrics.json "
            "says; the two are of different runs: probe it again"
        )
